"""What CUDA's sums and means need inside where many rows become one: partial sums of every block.

The gradient of a bias is such a sum. Its buffer may be twice as large as what is summed, up to 108
MiB on an A100. Left out: sums along the fastest dimension, whose buffers are a few KiB.

Source: torch 2.13, `ATen/native/cuda/Reduce.cuh` (setReduceConfig, ReduceConfig and
gpu_reduce_kernel; the functions named below are its), and for the order of dimensions
`aten/src/ATen/TensorIterator.cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from search.memory.cuda_device import Architecture, multiprocessors, threads_per_multiprocessor
from search.memory.target import Call, Inside

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256  # that one thread adds up
_MAX_OFFSET_BYTES = 2**31 - 1


class _Dimension(NamedTuple):
    """Strides are in elements."""

    size: int
    stride: int


def reduction_buffers(call: Call, architecture: Architecture) -> Iterator[Inside]:
    """The partial sums and the counters of one sum or mean, where several blocks share a column."""
    tensor: Tensor = call.args[0]
    chosen = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    reduced, kept = _split(tensor, chosen)
    if not tensor.numel() or not reduced or not kept or reduced[0].stride < kept[0].stride:
        return
    reduced, kept = _in_32_bits(reduced, kept, tensor.itemsize)
    num_rows, num_columns = (math.prod(one.size for one in some) for some in (reduced, kept))
    config = _Config(num_rows, num_columns, _vector(tensor, reduced, kept), architecture)
    num_parts = config.parts_per_column
    if num_parts > 1:
        width = config.block_width * config.vector
        yield Inside(max(4, tensor.itemsize) * num_columns * num_parts * width)
        yield Inside(4 * config.num_blocks)


class _Config:
    """How threads share the work. Source: setReduceConfig, set_block_dimension."""

    def __init__(
        self, num_rows: int, num_columns: int, vector: int, architecture: Architecture
    ) -> None:
        threads = _MAX_THREADS // vector
        across = min(_power_of_2(num_columns // vector), threads)
        down = min(_power_of_2(num_rows), threads)
        height = min(down, threads // min(across, _WARP))
        self.vector = vector
        self.block_width = min(across, threads // height)
        shares_rows = num_rows >= min(height * 16, _MAX_VALUES)
        step = self.block_width * (1 if shares_rows else height)
        self.num_blocks = math.ceil(num_columns // vector / step)
        values = math.ceil(num_rows / height) if shares_rows else 0
        at_once = threads_per_multiprocessor(architecture) // (self.block_width * height)
        target = multiprocessors(architecture) * at_once
        self.parts_per_column = 1
        if values >= _MAX_VALUES and self.num_blocks <= target:
            enough = min(math.ceil(target / self.num_blocks), math.ceil(values / _MIN_VALUES))
            self.parts_per_column = max(enough, math.ceil(values / _MAX_VALUES))


def _split(
    tensor: Tensor, chosen: Sequence[int] | int | None
) -> tuple[list[_Dimension], list[_Dimension]]:
    """What is summed up and what is left, each from the fastest dimension on, joined where it can.

    Source: reorder_dimensions, coalesce_dimensions.
    """
    numbers = [chosen] if isinstance(chosen, int) else chosen or range(tensor.dim())
    summed = {number % tensor.dim() for number in numbers} if tensor.dim() else set()
    sides: tuple[list[_Dimension], list[_Dimension]] = ([], [])
    for number in reversed(range(tensor.dim())):
        size = tensor.shape[number]
        if size > 1:
            sides[number not in summed].append(_Dimension(size, tensor.stride(number)))
    reduced, kept = (_joined(sorted(side, key=lambda one: one.stride)) for side in sides)
    return reduced, kept


def _joined(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    found: list[_Dimension] = []
    for one in dimensions:
        if found and found[-1].size * found[-1].stride == one.stride:
            found[-1] = _Dimension(found[-1].size * one.size, found[-1].stride)
        else:
            found.append(one)
    return found


def _in_32_bits(
    reduced: list[_Dimension], kept: list[_Dimension], itemsize: int
) -> tuple[list[_Dimension], list[_Dimension]]:
    """The first of the pieces into which a tensor of 2 GiB and more is halved, one at a time.

    Source: TensorIterator's can_use_32bit_indexing and get_dim_to_split.
    """
    sides = [list(reduced), list(kept)]
    while sum((one.size - 1) * one.stride for side in sides for one in side) * itemsize >= (
        _MAX_OFFSET_BYTES
    ):
        side, place = max(
            ((s, p) for s in (0, 1) for p in range(len(sides[s]))),
            key=lambda at: (sides[at[0]][at[1]].size - 1) * sides[at[0]][at[1]].stride,
        )
        whole = sides[side][place]
        sides[side][place] = _Dimension(whole.size // 2, whole.stride)
    return sides[0], sides[1]


def _vector(tensor: Tensor, reduced: Sequence[_Dimension], kept: Sequence[_Dimension]) -> int:
    """Numbers that a thread reads at once. Source: get_output_vec_size."""
    if kept[0].stride != 1:
        return 1
    others = [one.stride for one in (*reduced, *kept[1:])]
    return math.gcd(4, int(tensor.storage_offset()), kept[0].size, *others)


def _power_of_2(number: int) -> int:
    """The largest that is not above a number."""
    return 1 << (number.bit_length() - 1) if number else 1
