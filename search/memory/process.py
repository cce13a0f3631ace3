"""This process made fit for measuring: its resident memory follows its tensors, and nothing else.

Linux with glibc is what this is written for; elsewhere the settings of the C library are left out.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from search.memory.sample import Sample
from search.optimizers import optimizers_here
from search.training import TrainingRun
from search.training_params import Precision

if TYPE_CHECKING:
    from search.memory.device import Device

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_INITIAL_THRESHOLD_BYTES = 128 * 1024
"""Blocks from this size are mapped, and unmapped when freed.

It is glibc's own initial threshold, kept from adapting: by default each freed block raises it, up
to 32 MiB, and what lies below fragments the heap. Measured beside each other
(`benchmarks/memory_cpu.py`), the adapting heap needed 4 to 140 % more than its tensors.

Source: glibc `malloc/malloc.c`, DEFAULT_MMAP_THRESHOLD_MIN.
"""
_KERNEL_CACHE_CAPACITY = 128
"""Compiled kernels that stay cached, in oneDNN and in torch's layer above it.

Each bf16 matrix product of a new shape compiles and keeps 0.55 MiB for ever, up to 1,024 of them
by default. A full cache of fixed size trades an old kernel for a new one instead, so a trial's
peak does not hang on what was trained before it. A model needs three for each distinct layer.

Source: oneDNN's guide, "Primitive Cache"; measured in `tests/search/memory/test_process.py`.
"""
LEAK_TOLERANCE_BYTES = 32 * 1024 * 1024
"""Held memory up to which a process is clean: Python's objects, modules that a trial imported."""


class _State:
    """What `prepare_process` noted of this process."""

    baseline_bytes: int | None = None
    probe_lengths = itertools.count(2)


def prepare_process() -> None:
    """Makes this process warm, and notes what it holds then.

    Allocator and kernel caches are set up, and a little of every kind is trained, so that lazy
    imports and compiled kernels are not charged to a trial. To be called before the first trial,
    as early as can be; a second call does nothing.
    """
    if _State.baseline_bytes is not None:
        return
    limit_kernel_caches()
    keep_resident_memory_tight()
    _train_a_little()
    _fill_kernel_caches()
    note_what_is_held()


def note_what_is_held() -> None:
    """From now on what this process holds belongs to it, and to no trial."""
    _State.baseline_bytes = _held_bytes()


def keep_resident_memory_tight() -> None:
    """Makes glibc give freed tensors back at once, and use one heap for all threads."""
    mallopt: Callable[[int, int], int] | None = getattr(_c_library(), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, _INITIAL_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _INITIAL_THRESHOLD_BYTES)
    mallopt(_M_ARENA_MAX, 1)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def limit_kernel_caches() -> None:
    """Bounds the caches of compiled kernels; only before torch has compiled its first."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(_KERNEL_CACHE_CAPACITY))


def _fill_kernel_caches() -> None:
    """Compiles as many small matrix products as the caches hold."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001 - as torch's own tests ask
        return
    for length in range(16, 16 + _KERNEL_CACHE_CAPACITY):
        left = torch.zeros(length, 16, dtype=torch.bfloat16)
        torch.mm(left, left.t())


def _train_a_little() -> None:
    """Two steps and an evaluation of each precision, checkpointed or not, and of each optimizer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    large = torch.zeros(1024, 1024, device=device)
    torch.mm(large, large)
    kinds = itertools.product((Precision.FP32, Precision.BF16_MIXED), (False, True))
    configurations: list[dict[str, Any]] = [
        {"precision": precision, "activation_checkpointing": checkpointed}
        for precision, checkpointed in kinds
    ]
    configurations += [{"optimizer": optimizer} for optimizer in optimizers_here()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.random.fork_rng():
            for configuration in configurations:
                _train(configuration, device)


def _train(configuration: dict[str, Any], device: torch.device) -> None:
    params = {"batch_size": 4, "micro_batch_size": 2, **configuration}
    run = TrainingRun(Sample(), params, num_tokens=10**6, device=device)
    run.step()
    run.step()
    run.evaluate()


def release_memory(device: Device) -> int:
    """Bytes still held above what `prepare_process` left, after all that can be freed was freed.

    A process that can no longer compile kernels is of no more use: all it holds counts.

    Raises:
        RuntimeError: when the process was never prepared.
    """
    if _State.baseline_bytes is None:
        msg = "prepare_process was never called in this process"
        raise RuntimeError(msg)
    held_bytes = _held_bytes()
    if device.kind == "cpu" and not _compiles_kernels():
        return held_bytes
    return max(0, held_bytes - _State.baseline_bytes)


def _compiles_kernels() -> bool:
    """Whether oneDNN still works: once memory for a kernel's code was refused, it never does again.

    Source: met in `tests/search/memory/test_process.py`, in fp32 after a refusal in bf16 too.
    """
    unseen = next(_State.probe_lengths)
    try:
        torch.nn.functional.gelu(torch.zeros(unseen, 16))
    except RuntimeError:
        return False
    return True


def _held_bytes() -> int:
    """What this process holds: allocated on the GPU where there is one, else resident."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()
    return_freed_memory()
    return process_bytes("RssAnon")


def return_freed_memory() -> None:
    """Gives what was freed in the C library's heap back to the system."""
    trim: Callable[[int], int] | None = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def process_bytes(field: str) -> int:
    """A size of this process in bytes, as the kernel names it: RssAnon, VmHWM, VmData, ...

    Source: proc_pid_status(5).
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    msg = f"/proc/self/status has no {field}"
    raise RuntimeError(msg)
