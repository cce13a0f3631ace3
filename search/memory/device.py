"""Where trials run, and how much memory it has."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

_UNLIMITED_BYTES = 2**60
"""A control group without a limit names one beyond any machine's memory, in its first version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One place to train on. `capacity_bytes` is all the memory it has, used or not."""

    name: str
    kind: Literal["cpu", "cuda"]
    capacity_bytes: int

    @property
    def torch_device(self) -> torch.device:
        """The device as torch knows it."""
        return torch.device(self.kind)


def device_here() -> Device:
    """The current CUDA GPU where torch sees one, else the CPU with the memory it may use."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return Device(name=properties.name, kind="cuda", capacity_bytes=properties.total_memory)
    return Device(name=cpu_name(), kind="cpu", capacity_bytes=_usable_bytes())


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
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return total_bytes - free_bytes - torch.cuda.memory_reserved()
