"""What CUDA's sums and means need inside where many rows become one: partial sums of every block.

The gradient of a bias is such a sum. Its buffer may be twice as large as what is summed, up to 108
MiB on an A100. Left out: sums along the fastest dimension, whose buffers are a few KiB.

Source: torch 2.13, `ATen/native/cuda/Reduce.cuh` (setReduceConfig, ReduceConfig and
gpu_reduce_kernel; the functions named below are its), and for the order of dimensions
`aten/src/ATen/TensorIterator.cpp`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from search.memory.cuda_device import Architecture, multiprocessors, threads_per_multiprocessor
from search.memory.formulas import rule
from search.memory.target import Call, Inside, sized

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
    plain = itertools.chain(*reduced, *kept)
    numbers = (*architecture, tensor.itemsize, int(tensor.storage_offset()), len(reduced), *plain)
    yield sized(bytes_of_partial_sums, *numbers)
    yield sized(bytes_of_reduction_counters, *numbers)


@rule
def bytes_of_partial_sums(*numbers: int) -> int:
    """What the blocks of threads leave behind, in fp32 at least; see `_config` for the numbers."""
    itemsize, num_columns, config = _config(*numbers)
    width = config.block_width * config.vector
    return max(4, itemsize) * num_columns * config.parts_per_column * width * config.is_shared


@rule
def bytes_of_reduction_counters(*numbers: int) -> int:
    """One number for each block of threads in a row."""
    return 4 * _config(*numbers)[2].num_blocks * _config(*numbers)[2].is_shared


def _config(
    major: int, minor: int, itemsize: int, offset: int, num_reduced: int, *plain: int
) -> tuple[int, int, _Config]:
    """The bytes of a number, the columns, and how threads share the work.

    Args:
        major: of the architecture.
        minor: the same.
        itemsize: bytes of a number.
        offset: of the tensor in its storage, in numbers.
        num_reduced: how many dimensions are summed up.
        plain: sizes and strides of these, then of those kept, in turn.
    """
    dimensions = [_Dimension(*pair) for pair in zip(plain[::2], plain[1::2], strict=True)]
    reduced, kept = _in_32_bits(dimensions[:num_reduced], dimensions[num_reduced:], itemsize)
    num_rows, num_columns = (math.prod(one.size for one in some) for some in (reduced, kept))
    vector = _vector(offset, reduced, kept)
    return itemsize, num_columns, _Config(num_rows, num_columns, vector, (major, minor))


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

    @property
    def is_shared(self) -> bool:
        """Whether several blocks sum up one column, and so need memory in between."""
        return self.parts_per_column > 1


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


def _vector(offset: int, reduced: Sequence[_Dimension], kept: Sequence[_Dimension]) -> int:
    """Numbers that a thread reads at once. Source: get_output_vec_size."""
    if kept[0].stride != 1:
        return 1
    others = [one.stride for one in (*reduced, *kept[1:])]
    return math.gcd(4, offset, kept[0].size, *others)


def _power_of_2(number: int) -> int:
    """The largest that is not above a number."""
    return 1 << (number.bit_length() - 1) if number else 1
