"""A budget enforced on a block of code, so that a wrong prediction hurts that block alone."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from search.memory.device import Device, cuda_context_bytes
from search.memory.process import process_bytes

_OUT_OF_MEMORY_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "could not create a primitive",
    "could not create a memory object",
    "could not execute a primitive",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cannot allocate memory",
    "std::bad_alloc",
)


@contextmanager
def enforce_budget(device: Device, budget_bytes: int) -> Iterator[None]:
    """Lets the block use `budget_bytes` more than now; beyond, allocations fail as out of memory.

    On CUDA the context counts in. On a CPU the limit counts mapped memory of this process, be it
    touched or not.
    """
    limited = (
        _cuda_limit(device, budget_bytes) if device.kind == "cuda" else _data_limit(budget_bytes)
    )
    with limited:
        yield


@contextmanager
def _cuda_limit(device: Device, budget_bytes: int) -> Iterator[None]:
    usable_bytes = budget_bytes - cuda_context_bytes()
    fraction = min(1.0, max(0.0, usable_bytes / device.capacity_bytes))
    torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def _data_limit(budget_bytes: int) -> Iterator[None]:
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = process_bytes("VmData") + budget_bytes
    if before != resource.RLIM_INFINITY:
        limit = min(limit, before)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU, in a native kernel or in Python.

    Source: `tests/search/memory/test_budget.py` meets each of them under a real limit.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(
        words in str(error) for words in _OUT_OF_MEMORY_WORDS
    )
