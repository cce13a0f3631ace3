"""What sums and means of bf16 and fp16 numbers need inside, on a CPU: an fp32 copy of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

_HALVES = (torch.bfloat16, torch.float16)


def mean_bytes(tensor: Tensor) -> int:
    """Bytes that are there only while the mean of a tensor is taken, over whichever dimensions.

    Source: torch's `aten/src/ATen/native/ReduceOps.cpp`, mean_out on a CPU.
    """
    return _widened_bytes(tensor) if tensor.dtype in _HALVES else 0


def sum_bytes(tensor: Tensor, dimensions: Sequence[int] | None) -> int:
    """Bytes that are there only while a tensor is summed over `dimensions`, None for all.

    The copy is made where what is summed up is no single run of places, such as the samples and
    pixels of one channel.

    Source: the same file, sum_out and should_use_acc_buffer; which dimensions fall together:
    `aten/src/ATen/TensorIterator.cpp`, coalesce_dimensions.
    """
    if tensor.dtype not in _HALVES:
        return 0
    return _widened_bytes(tensor) if _num_runs(tensor, dimensions) > 1 else 0


def _num_runs(tensor: Tensor, dimensions: Sequence[int] | None) -> int:
    """How many of the dimensions are left when those that follow one another are taken as one."""
    chosen = range(tensor.dim()) if not dimensions else {one % tensor.dim() for one in dimensions}
    steps = sorted((tensor.stride(one), tensor.shape[one]) for one in chosen)
    runs = [(stride, size) for stride, size in steps if size > 1]
    follows = sum(
        next_stride == stride * size
        for (stride, size), (next_stride, _) in itertools.pairwise(runs)
    )
    return len(runs) - follows


def _widened_bytes(tensor: Tensor) -> int:
    return tensor.numel() * torch.float32.itemsize
