# ruff: noqa: N802, N815 - the fake has the library's own names
import os
import sys
from types import SimpleNamespace

import pytest

from search.memory.nvml import HeldBytes, bytes_held_by, gpu_with, gpus_here

GIB = 2**30
A100 = "NVIDIA A100-SXM4-40GB"


class NvmlError(Exception):
    """As `pynvml.NVMLError`: what every call of the library raises."""


class FakeNvml:
    """The driver's library over GPUs given as namespaces: what `pynvml` offers, no more."""

    NVMLError = NvmlError
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *found, has_driver=True, is_old=False):
        self.found, self.has_driver, self.is_old, self.is_open = found, has_driver, is_old, False

    def nvmlInit(self):
        if not self.has_driver:
            raise NvmlError
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlSystemGetDriverVersion(self):
        assert self.is_open
        return "580.65.06"

    def nvmlDeviceGetCount(self):
        return len(self.found)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.found[index]

    def nvmlDeviceGetMigMode(self, handle):
        if handle.slices is None:
            raise NvmlError
        return [int(bool(handle.slices)), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(handle.slices):
            raise NvmlError
        return handle.slices[index]

    def nvmlDeviceGetName(self, handle):
        if handle.is_lost:
            raise NvmlError
        return handle.name

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return handle.capability

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        total, reserved, used = handle.memory
        if version is None:
            return SimpleNamespace(total=total - reserved, used=used)
        if self.is_old:
            raise NvmlError
        return SimpleNamespace(total=total, reserved=reserved, used=used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if handle.processes is None:
            raise NvmlError
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in handle.processes]


def gpu(**changes):
    facts = {
        "name": A100,
        "uuid": "GPU-1b2c",
        "capability": (8, 0),
        "memory": (40 * GIB, GIB // 2, 3 * GIB),
        "processes": [],
        "slices": None,
        "is_lost": False,
    }
    return SimpleNamespace(**{**facts, **changes})


def test_what_cuda_can_give_out_is_all_but_the_drivers_own():
    nvml = FakeNvml(gpu())
    (found,) = gpus_here(nvml)
    assert (found.name, found.architecture, found.driver) == (A100, (8, 0), "580.65.06")
    assert found.total_bytes == 40 * GIB - GIB // 2
    assert found.held_bytes == 3 * GIB
    assert not nvml.is_open


def test_this_process_holds_nothing_from_itself():
    processes = [(os.getpid(), 2 * GIB), (1, GIB)]
    (found,) = gpus_here(FakeNvml(gpu(processes=processes)))
    assert found.held_bytes == GIB


@pytest.mark.parametrize("processes", [None, [(os.getpid(), None)]])
def test_where_the_driver_tells_nothing_of_processes_all_counts_as_others(processes):
    (found,) = gpus_here(FakeNvml(gpu(processes=processes)))
    assert found.held_bytes == 3 * GIB


def test_an_old_driver_reports_the_rest_directly():
    (found,) = gpus_here(FakeNvml(gpu(), is_old=True))
    assert (found.total_bytes, found.held_bytes) == (40 * GIB - GIB // 2, 3 * GIB)


def test_a_sliced_gpu_is_shown_as_its_slices():
    parts = [
        gpu(name=f"{A100} MIG 3g.20gb", uuid=f"MIG-{i}", memory=(20 * GIB, 0, i * GIB))
        for i in range(2)
    ]
    found = gpus_here(FakeNvml(gpu(slices=parts), gpu(uuid="GPU-2", slices=[])))
    assert [one.name for one in found] == [f"{A100} MIG 3g.20gb", f"{A100} MIG 3g.20gb", A100]
    assert [one.held_bytes for one in found] == [0, GIB, 3 * GIB]
    assert {one.architecture for one in found} == {(8, 0)}


def test_a_gpu_that_fell_off_its_bus_hides_no_other():
    found = gpus_here(FakeNvml(gpu(is_lost=True), gpu(uuid="GPU-2")))
    assert [one.uuid for one in found] == ["GPU-2"]


def test_no_driver_is_no_fault():
    assert gpus_here(FakeNvml(has_driver=False)) == ()


def test_no_library_is_no_fault(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus_here() == ()
    assert gpu_with("GPU-1b2c") is None


@pytest.mark.parametrize("uuid", ["GPU-1b2c", "1b2c", "1B2C"])
def test_a_gpu_is_found_by_its_uuid_as_torch_and_as_the_driver_write_it(uuid):
    nvml = FakeNvml(gpu(uuid="GPU-0"), gpu())
    assert gpu_with(uuid, nvml).uuid == "GPU-1b2c"
    assert gpu_with("GPU-9", nvml) is None


def test_what_processes_hold_of_a_gpu_is_told_beside_what_all_hold():
    nvml = FakeNvml(gpu(uuid="GPU-0"), gpu(processes=[(7, 2 * GIB), (8, GIB // 2), (9, None)]))
    assert bytes_held_by("1b2c", (7, 9), nvml) == HeldBytes(in_all=3 * GIB, by_processes=2 * GIB)
    assert bytes_held_by("1b2c", (1,), nvml) == HeldBytes(in_all=3 * GIB, by_processes=0)
    nothing = HeldBytes(in_all=0, by_processes=0)
    assert bytes_held_by("GPU-9", (7,), nvml) == nothing
    assert bytes_held_by("1b2c", (7,), FakeNvml(has_driver=False)) == nothing
