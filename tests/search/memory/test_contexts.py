import pytest

from search.memory import contexts
from search.memory.contexts import (
    measured_context,
    measured_contexts,
    published_context,
    record_context,
)
from search.memory.device import WorkspaceBytes
from search.memory.files import cache_folder

MIB = 2**20
HERE = {"driver": "580.65.06", "torch_version": "2.13.0+cu130"}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_nothing_is_known_before_it_is_measured():
    assert measured_context("NVIDIA H100", **HERE) is None
    assert measured_contexts() == ()


def test_what_was_measured_is_the_median_between_its_bounds():
    for size in (500 * MIB, 530 * MIB, 510 * MIB):
        record_context("NVIDIA H100", **HERE, num_bytes=size)
    found = measured_context("nvidia h100", **HERE).estimate
    assert found.low_bytes == 500 * MIB
    assert found.expected_bytes == 510 * MIB
    assert found.high_bytes == 530 * MIB
    assert found.source == "measured here"


def test_another_driver_torch_or_device_is_another_measurement():
    record_context("NVIDIA H100", **HERE, num_bytes=500 * MIB)
    assert measured_context("NVIDIA H100", driver="575", torch_version="2.13.0+cu130") is None
    assert measured_context("NVIDIA H100", driver="580.65.06", torch_version="2.13.0") is None
    assert measured_context("NVIDIA H200", **HERE) is None
    record_context("NVIDIA H200", **HERE, num_bytes=600 * MIB)
    assert [one.device_name for one in measured_contexts()] == ["NVIDIA H100", "NVIDIA H200"]


def test_workspaces_stay_beside_the_context_until_they_are_measured_again(monkeypatch):
    for num_bytes in (1, 2):
        found = WorkspaceBytes(cublas_bytes=num_bytes, lt_bytes=0, backward_bytes=3)
        record_context("NVIDIA H100", **HERE, num_bytes=500 * MIB, workspaces=found)
        record_context("NVIDIA H100", **HERE, num_bytes=510 * MIB)
        known = measured_context("NVIDIA H100", **HERE)
        assert known.workspaces == known.workspaces_here == found
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # asks for others than were measured
    assert measured_context("NVIDIA H100", **HERE).workspaces_here is None


def test_the_latest_are_kept():
    for size in range(40):
        record_context("NVIDIA L4", **HERE, num_bytes=size)
    assert measured_context("NVIDIA L4", **HERE).sizes_bytes == tuple(range(8, 40))


_ODD = '{"device": "x", "driver": "1", "torch": "2", "sizes_bytes": [1], "workspaces": {"a": 1}}'


@pytest.mark.parametrize("entry", ["[]", _ODD, '{"device": "x"}', '{"sizes_bytes": "many"}', "7"])
def test_a_damaged_entry_is_as_good_as_none_and_is_replaced(entry):
    record_context("NVIDIA L4", **HERE, num_bytes=1)
    file = cache_folder() / "contexts.json"
    key = contexts._key("NVIDIA L4", **HERE)
    file.write_text(f'{{"{key}": {entry}}}')
    assert measured_context("NVIDIA L4", **HERE) is None
    record_context("NVIDIA L4", **HERE, num_bytes=2)
    assert measured_context("NVIDIA L4", **HERE).sizes_bytes == (2,)


def test_a_cache_that_cannot_be_written_is_no_fault(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    record_context("NVIDIA L4", **HERE, num_bytes=1)
    assert measured_contexts() == ()


@pytest.mark.parametrize("architecture", [(5, 0), (7, 0), (8, 0), (8, 6), (9, 0), (12, 0)])
def test_every_capability_has_an_estimate_within_what_is_published(architecture):
    # from a bare context on an RTX 3090 (InvokeAI #9413) to training on an A100 (GPUMemNet)
    found = published_context(architecture)
    assert 256 * MIB <= found.low_bytes <= found.expected_bytes <= found.high_bytes <= 1431 * MIB
    assert found.source


def test_the_a100_has_a_spread_of_its_own():
    # itu-rad/GPUMemNet: the least and the most of the context and baseline over the MLP rows
    found = published_context((8, 0))
    assert (found.low_bytes, found.high_bytes) == (1411 * MIB, 1431 * MIB)
    assert found.low_bytes <= found.expected_bytes <= found.high_bytes


def test_a_bare_context_is_a_lower_bound():
    # unsloth-zoo #1053: 426 MiB on an RTX 6000 Ada before any kernel ran
    assert published_context((8, 9)).low_bytes == 426 * MIB


def test_it_is_told_where_a_value_is_of_another_gpu():
    assert "not this one" in published_context((12, 0)).source
    assert "not this one" not in published_context((8, 6)).source
