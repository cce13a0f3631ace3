"""The NVIDIA GPUs of this machine, as their driver tells through NVML. No GPU is no fault.

NVML is asked without creating a CUDA context, which would itself take memory of the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHere:
    """One GPU, or one MIG slice of one, at the moment it was asked.

    Attributes:
        total_bytes: what CUDA can give out: all memory but what the driver keeps for itself.
        held_bytes: what processes other than this one hold.
    """

    name: str
    uuid: str
    architecture: tuple[int, int]
    total_bytes: int
    held_bytes: int
    driver: str


def gpus_here(nvml: Any = None) -> tuple[GpuHere, ...]:
    """The GPUs that the driver shows, a sliced one as its slices; none without a driver.

    What `CUDA_VISIBLE_DEVICES` hides is shown too.

    Args:
        nvml: the library, as the `pynvml` module of the nvidia-ml-py package; default: that
            module, where it is installed.
    """
    if nvml is None and (nvml := _library()) is None:
        return ()
    try:
        with _session(nvml):
            driver = nvml.nvmlSystemGetDriverVersion()
            return tuple(_readable(nvml, driver))
    except nvml.NVMLError:
        return ()


def _readable(nvml: Any, driver: str) -> Iterator[GpuHere]:
    """The GPUs that answer: one that fell off its bus hides no other."""
    for handle, parent in _handles(nvml):
        with suppress(nvml.NVMLError):
            yield _gpu(nvml, handle, parent, driver)


def gpu_with(uuid: str, nvml: Any = None) -> GpuHere | None:
    """The GPU of a UUID, with or without its prefix; None where NVML does not tell of it."""
    wanted = _plain(uuid)
    return next((gpu for gpu in gpus_here(nvml) if _plain(gpu.uuid) == wanted), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What is held of a GPU: by everybody, and by some processes as far as the driver tells."""

    in_all: int
    by_processes: int


def bytes_held_by(uuid: str, pids: Collection[int], nvml: Any = None) -> HeldBytes:
    """What some processes hold of a GPU now; nothing where NVML does not tell of it.

    In a container the driver may know processes by other numbers, and then tells 0.
    """
    nothing = HeldBytes(in_all=0, by_processes=0)
    if nvml is None and (nvml := _library()) is None:
        return nothing
    try:
        with _session(nvml):
            for handle, _ in _handles(nvml):
                if _plain(nvml.nvmlDeviceGetUUID(handle)) == _plain(uuid):
                    _, used_bytes = _memory(nvml, handle)
                    held_bytes = _held_bytes(nvml, handle, pids)
                    return HeldBytes(in_all=used_bytes, by_processes=held_bytes)
    except nvml.NVMLError:
        pass
    return nothing


def total_joules(uuid: str, nvml: Any = None) -> float | None:
    """The energy a GPU took since its driver was loaded; None where it has no such counter.

    Slices of a GPU and those before Volta have none. Source: NVML API reference,
    `nvmlDeviceGetTotalEnergyConsumption`, in mJ.
    """
    if nvml is None and (nvml := _library()) is None:
        return None
    with suppress(nvml.NVMLError), _session(nvml):
        for handle, _ in _handles(nvml):
            if _plain(nvml.nvmlDeviceGetUUID(handle)) == _plain(uuid):
                return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
    return None


def _library() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


@contextmanager
def _session(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _handles(nvml: Any) -> Iterator[tuple[Any, Any]]:
    """Each GPU or slice with the GPU it lies on."""
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        slices = list(_slices(nvml, gpu))
        yield from ((part, gpu) for part in slices or [gpu])


def _slices(nvml: Any, gpu: Any) -> Iterator[Any]:
    """The MIG slices of a GPU; none of one that has none, or cannot have any."""
    try:
        is_sliced = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        num_places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if is_sliced else 0
    except nvml.NVMLError:
        return
    for index in range(num_places):
        with suppress(nvml.NVMLError):  # a place without a slice
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)


def _gpu(nvml: Any, handle: Any, parent: Any, driver: str) -> GpuHere:
    total_bytes, used_bytes = _memory(nvml, handle)
    return GpuHere(
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        architecture=tuple(nvml.nvmlDeviceGetCudaComputeCapability(parent)),
        total_bytes=total_bytes,
        held_bytes=max(0, used_bytes - _held_bytes(nvml, handle, (os.getpid(),))),
        driver=driver,
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """What CUDA can give out, and what processes use of it.

    Source: NVML API reference, `nvmlMemory_v2_t`: `total` counts what is `reserved` for the driver,
    `used` does not. Drivers before R510 have the first form alone, whose `total` is without it.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return memory.total, memory.used
    return memory.total - memory.reserved, memory.used


def _held_bytes(nvml: Any, handle: Any, pids: Collection[int]) -> int:
    """What processes use of a GPU; 0 where the driver does not tell."""
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return 0
    return sum(one.usedGpuMemory or 0 for one in processes if one.pid in pids)


def _plain(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
