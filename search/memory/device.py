"""A place to train on: how much memory it has, how fast it is, and the one that is here."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

_UNLIMITED_BYTES = 2**60
"""A control group without a limit names one beyond any machine's memory, in its first version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteEstimate:
    """A size that is not known to the byte: between which bounds it lies, and who says so."""

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    source: str


_WORKSPACE_SETTINGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "DISABLE_ADDMM_CUDA_LT",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
)
"""What of a process's environment decides its workspaces, see `search.memory.cuda_workspaces`."""


def workspace_setting() -> str:
    """What this process's environment says of workspaces; empty where it says nothing."""
    found = ((name, os.environ.get(name)) for name in _WORKSPACE_SETTINGS)
    return " ".join(f"{name}={value}" for name, value in found if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceBytes:
    """What the libraries of matrix products ask for once and keep, in bytes.

    Attributes:
        cublas_bytes: cuBLAS, at the first product of the main thread.
        lt_bytes: cuBLASLt, at its first product that adds a bias.
        backward_bytes: cuBLAS, at the first product of the thread that runs the backward pass.
        setting: `workspace_setting` of the process they were measured in.
    """

    cublas_bytes: int
    lt_bytes: int
    backward_bytes: int
    setting: str = ""

    @property
    def num_bytes(self) -> int:
        """All of them together."""
        return self.cublas_bytes + self.lt_bytes + self.backward_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakFlops:
    """The most floating-point operations per second, dense, by precision; None: not known.

    `fp32` runs on the common cores. The others run on tensor cores, with sums kept in fp32, and
    are None where the GPU's tensor cores do not know that precision.
    """

    fp32: float | None
    tf32: float | None
    bf16: float | None
    fp16: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One place to train on. What a CPU does not have, or nobody knows of a GPU, is None.

    Attributes:
        capacity_bytes: all the memory that can be had on it, used or not.
        capacity: `capacity_bytes` with its bounds, where it was looked up and not reported.
        architecture: the compute capability, such as (8, 0) for an A100.
        bandwidth_bytes_per_second: of its memory, as the maker states it.
        context: what a process takes outside torch's allocator: the CUDA context with the
            kernels loaded into it.
        workspaces: of the libraries of matrix products, where they were measured on it.
        held_bytes: what other processes held when it was looked at.
        driver: the version of the driver that answered.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    capacity_bytes: int
    capacity: ByteEstimate | None = None
    architecture: tuple[int, int] | None = None
    memory_type: str | None = None
    bandwidth_bytes_per_second: float | None = None
    peak_flops: PeakFlops | None = None
    context: ByteEstimate | None = None
    workspaces: WorkspaceBytes | None = None
    held_bytes: int = 0
    driver: str | None = None

    @property
    def torch_device(self) -> torch.device:
        """The device as torch knows it."""
        import torch

        return torch.device(self.kind)

    @property
    def usable_bytes(self) -> int:
        """What torch's allocator can reserve: all but the context and what others hold."""
        context_bytes = self.context.expected_bytes if self.context else 0
        return max(0, self.capacity_bytes - context_bytes - self.held_bytes)


def device_here() -> Device:
    """The current CUDA GPU where torch sees one, else the CPU with the memory it may use."""
    import torch

    if not torch.cuda.is_available():
        return Device(name=cpu_name(), kind="cpu", capacity_bytes=_usable_bytes())
    from search.memory.catalogue import described  # which builds on this module
    from search.memory.nvml import gpu_with

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    found = gpu_with(str(properties.uuid))
    return described(
        properties.name,
        capacity_bytes=properties.total_memory,
        architecture=(properties.major, properties.minor),
        held_bytes=found.held_bytes if found else 0,
        driver=found.driver if found else None,
        torch_version=torch.__version__,
    )


def cpu_name() -> str:
    """The model of this machine's processor, as the kernel tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _usable_bytes() -> int:
    """The physical memory, or the least limit of the control groups this process is in."""
    physical_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical_bytes, *control_group_limits(Path("/proc/self/cgroup"))])


def control_group_limits(membership: Path, root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """The memory limits in bytes of a process's control groups and of all groups above them.

    Source: cgroups(7); the kernel's `Documentation/admin-guide/cgroup-v2.rst`, memory.max.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            folder = root / controllers
            file = "memory.limit_in_bytes" if controllers else "memory.max"
            yield from _limits_upwards(folder, path, file)


def _limits_upwards(folder: Path, path: str, file: str) -> Iterator[int]:
    group = folder / path.lstrip("/")
    for place in (group, *group.parents):
        try:
            limit = (place / file).read_text(encoding="ascii").strip()
        except OSError:
            limit = "max"
        if limit != "max" and int(limit) < _UNLIMITED_BYTES:
            yield int(limit)
        if place == folder:
            return


def cuda_context_bytes() -> int:
    """What this process uses of the GPU outside the allocator; other processes' memory included.

    Exact where a trial has the GPU to itself, as trials on GPUs here do.
    """
    import torch

    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return total_bytes - free_bytes - torch.cuda.memory_reserved()
