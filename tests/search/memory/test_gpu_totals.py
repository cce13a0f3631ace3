import pytest

from search.memory import gpu_totals
from search.memory.gpu_list import gpus
from search.memory.gpu_totals import LEAST_SHARE, capacity

MIB = 2**20
BY_NAME = {gpu.name: gpu for gpu in gpus()}


@pytest.mark.parametrize("name", gpu_totals._REPORTED_MIB)
def test_a_driver_gives_less_than_the_nominal_size(name):
    gpu, size = BY_NAME[name], capacity(BY_NAME[name])
    assert LEAST_SHARE * gpu.memory_bytes <= size.low_bytes == size.expected_bytes
    assert size.expected_bytes <= size.high_bytes < gpu.memory_bytes


def test_the_least_share_is_that_of_the_table():
    least = min(
        capacity(BY_NAME[name]).low_bytes / BY_NAME[name].memory_bytes
        for name in gpu_totals._REPORTED_MIB
    )
    assert least == pytest.approx(LEAST_SHARE, abs=0.001)


def test_where_runs_ended_for_want_of_memory_lies_within_the_bounds():
    # PyTorch's out-of-memory messages: "GPU 0 has a total capacity of 39.39 GiB" on an A100 40 GB,
    # 79.25 on one of 80 GB, 23.64 on an RTX 4090, 178.35 on a B200
    seen = {
        "A100 SXM4 40 GB": 39.39,
        "A100 SXM4 80 GB": 79.25,
        "GeForce RTX 4090": 23.64,
        "B200": 178.35,
    }
    for name, gib in seen.items():
        size = capacity(BY_NAME[name])
        assert size.low_bytes - 10 * MIB <= gib * 2**30 <= size.high_bytes + 10 * MIB


def test_without_a_report_the_nominal_size_is_expected_and_the_bound_is_lower():
    gpu = BY_NAME["GeForce RTX 3070"]
    size = capacity(gpu)
    assert size.expected_bytes == size.high_bytes == gpu.memory_bytes == 8 * 2**30
    assert size.low_bytes == int(0.91 * 8 * 2**30)
    assert size.source.startswith("nominal")
