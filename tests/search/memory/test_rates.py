import pytest

from search.memory import rates
from search.memory.catalogue import device_named
from search.memory.device import Device, PeakFlops
from search.memory.rates import rates_by_data_sheet, rates_here
from search.memory.speed import FAST_GPU, SLOW_GPU, step_seconds
from search.memory.work import Arithmetic, OperatorWork, Work

CPU = Device(name="some processor", kind="cpu", capacity_bytes=2**30)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paretune" / "rates.json"


@pytest.mark.usefixtures("cache")
def test_what_is_measured_is_between_its_ends():
    found = rates_here(CPU)
    assert {"fp32", "bf16", "fp16"} == set(found.flops_per_second)
    assert found.slow.flops <= found.fast.flops == 1.0
    assert found.slow.operator_seconds >= found.fast.operator_seconds > 0
    product = Work(operators=(OperatorWork(Arithmetic.FP32, 10**9, 10**6),))
    slow, fast = (step_seconds(product, found, end) for end in (found.slow, found.fast))
    assert slow >= fast > 0


def test_is_measured_once_for_a_machine(cache, monkeypatch):
    first = rates_here(CPU)
    assert cache.exists()
    monkeypatch.setattr(rates, "_measured", None)
    assert rates_here(CPU) == first


def test_a_damaged_cache_is_measured_again(cache):
    cache.parent.mkdir()
    cache.write_text("{")
    assert rates_here(CPU).bandwidth_bytes_per_second > 0


def test_a_data_sheet_gives_the_rates_of_a_gpu():
    found = rates_by_data_sheet(device_named("A100 SXM4 80 GB"))
    # NVIDIA's data sheet of the A100: 19.5, 156, 312, 312 TFLOPS dense
    assert found.flops_per_second == pytest.approx(
        {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}, rel=0.01
    )
    assert found.bandwidth_bytes_per_second > 1.9e12
    assert (found.slow, found.fast) == (SLOW_GPU, FAST_GPU)


def test_types_a_gpu_lacks_are_computed_in_fp32():
    volta = Device(
        name="V100",
        kind="cuda",
        capacity_bytes=2**34,
        bandwidth_bytes_per_second=9e11,
        peak_flops=PeakFlops(fp32=15.7e12, tf32=None, bf16=None, fp16=125e12),
    )
    found = rates_by_data_sheet(volta)
    assert set(found.flops_per_second) == {"fp32", "fp16"}
    assert found.peak(Arithmetic.BF16) == 15.7e12


def test_what_nobody_knows_has_no_rates():
    assert rates_by_data_sheet(CPU) is None
