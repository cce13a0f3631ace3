"""What `gpu_check.py` measures on the GPU that is here: torch's statistics, and the driver's."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.allocator_replay import Sample, Step, steps_of
from benchmarks.gpu_check_configurations import SMALL_BYTES, Configuration, configurations
from benchmarks.gpu_check_runs import drawn, drive
from search.memory.device import WorkspaceBytes, device_here
from search.memory.workspace_measurement import measured_here

_GPU = torch.device("cuda")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
HOLD_CONTEXT = "--hold-context"
"""Tells a second process of the check to hold a context while the first one looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The peaks of a run, what it left the GPU with, and what went on beside."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    num_alloc_retries: int
    num_skipped_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBytes:
    """What a process holds of the GPU outside torch's allocator: at first, and after training.

    `others_bytes` is what other processes held when it was measured.
    """

    bare_bytes: int
    trained_bytes: int
    others_bytes: int


def architecture_here() -> tuple[int, int]:
    """The compute capability of the current GPU."""
    return cast("tuple[int, int]", torch.cuda.get_device_capability())


def driver_version() -> str | None:
    """The driver's version, from NVML or from the driver's own file."""
    found = device_here().driver
    if found is None:
        with suppress(OSError):
            text = _DRIVER_FILE.read_text(encoding="utf-8")
            match = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)\s", text)
            found = match[1] if match else None
    return found


def used_bytes() -> int:
    """What all processes hold of the GPU now, as the driver counts it."""
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return int(total_bytes - free_bytes)


def clean() -> int:
    """Empties the allocator as in a new process; gives the bytes that could not be freed.

    Source: torch's `aten/src/ATen/cuda/CublasHandlePool.cpp`, clearCublasWorkspaces.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # type: ignore[attr-defined]  # noqa: SLF001
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def measured(configuration: Configuration, *, held_bytes: int = 0) -> Measured:
    """Runs it from an empty allocator, and reads torch's statistics.

    Args:
        configuration: what to run.
        held_bytes: what other processes hold of the GPU, which is taken off.
    """
    clean()
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    run = drive(configuration, _GPU, drawn(configuration))
    torch.cuda.synchronize()
    found = torch.cuda.memory_stats()
    result = Measured(
        requested_bytes=found["requested_bytes.all.peak"],
        allocated_bytes=found["allocated_bytes.all.peak"],
        reserved_bytes=found["reserved_bytes.all.peak"],
        device_bytes=used_bytes() - held_bytes,
        num_alloc_retries=found["num_alloc_retries"] - retries,
        num_skipped_steps=run.overflow_steps,
    )
    del run
    clean()
    return result


def fits(configuration: Configuration) -> bool:
    """Whether it runs within the fraction of the memory that this process may use."""
    clean()
    try:
        drive(configuration, _GPU, drawn(configuration))
        torch.cuda.synchronize()
        found = True
    except torch.cuda.OutOfMemoryError:
        found = False  # cleaned outside: inside, the exception keeps the run's tensors alive
    clean()
    return found


def workspaces() -> WorkspaceBytes:
    """What cuBLAS and cuBLASLt took: in the main thread, and in that of the backward pass."""
    clean()
    found = measured_here(_GPU)
    clean()
    return found


class _Sampler(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes torch's statistics after each operator, counted from where it began."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples: list[Sample] = []
        self._begin = _counts()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        now = _counts()
        counted = (now[0] - self._begin[0], now[1] - self._begin[1])
        self.samples.append(Sample(*counted, *now[2:]))
        return result


def _counts() -> tuple[int, int, int, int, int]:
    found = torch.cuda.memory_stats()
    return (
        found["allocation.all.allocated"],
        found["allocation.all.freed"],
        found["requested_bytes.all.current"],
        found["allocated_bytes.all.current"],
        found["reserved_bytes.all.current"],
    )


def history(configuration: Configuration) -> tuple[list[Step], list[Sample], int]:
    """The allocator's record of a run, samples on the way, the allocated bytes at its end.

    The last are the blocks in use of the snapshot's segments.
    """
    left_bytes = clean()
    if left_bytes:
        msg = f"{left_bytes:,} B are still allocated, so a history would not begin empty"
        raise RuntimeError(msg)
    torch.cuda.memory._record_memory_history(context=None)  # noqa: SLF001 - torch documents it so
    try:
        with _Sampler() as sampler:
            run = drive(configuration, _GPU, drawn(configuration))
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
    del run
    clean()
    blocks = (block for segment in snapshot["segments"] for block in segment["blocks"])
    end_bytes = sum(block["size"] for block in blocks if block["state"] != "inactive")
    return steps_of(snapshot, torch.cuda.current_device()), sampler.samples, end_bytes


def context_bytes() -> ContextBytes:
    """What a second process holds of the GPU beyond what its allocator reserved.

    What others hold is what is left of the GPU's use when this process is taken to hold as much.

    Source: the driver's count of free memory, before the second process asks and while it waits.
    """
    torch.zeros(1, device=_GPU)
    clean()
    own_bytes, before_bytes = torch.cuda.memory_reserved(), used_bytes()
    with _second_process() as reserved_bytes:
        bare_bytes, trained_bytes = (
            -reserved_bytes() + used_bytes() - before_bytes for _ in _STAGES
        )
    others_bytes = max(0, before_bytes - own_bytes - bare_bytes)
    return ContextBytes(
        bare_bytes=bare_bytes, trained_bytes=trained_bytes, others_bytes=others_bytes
    )


@contextmanager
def _second_process() -> Iterator[Callable[[], int]]:
    """Goes through the stages one by one; each answer is what it has reserved after one."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_check", HOLD_CONTEXT]
    with subprocess.Popen(  # noqa: S603 - our own module
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        asked, answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

        def reserved_bytes() -> int:
            print(file=asked, flush=True)
            answer = answers.readline()
            if not answer:
                msg = "the second process ended before it answered"
                raise RuntimeError(msg)
            return int(answer)

        try:
            yield reserved_bytes
        finally:
            asked.close()


def hold_context() -> None:
    """What the second process does."""
    for stage in _STAGES:
        sys.stdin.readline()
        stage()
        print(torch.cuda.memory_reserved(), flush=True)
    sys.stdin.readline()


def _begin() -> None:
    torch.zeros(1, device=_GPU)


def _train() -> None:
    """Every kind of model in fp32 and 16 bits, so that most kernels are loaded."""
    architecture = architecture_here()
    for configuration in configurations(SMALL_BYTES, architecture)[::4]:
        drive(configuration, _GPU, drawn(configuration))
        clean()


_STAGES = (_begin, _train)
