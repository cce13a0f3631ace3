"""What CUDA's attention kernels ask for beside their results, (B, H, T, E) in, (B, H, T, V) out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from search.memory.cuda_device import Architecture, has_much_shared_memory, multiprocessors
from search.memory.formulas import rule
from search.memory.target import Call, Freed, Inside, Returned, Unsure, sized

_UNLIMITED = 65_536


def flash_forward(call: Call, architecture: Architecture) -> Iterator[Inside]:
    """Partial results where few blocks of queries would leave processors idle.

    Left out where a backward pass may follow: it comes only where B H T is small, below 20 MiB
    beside what the backward pass needs, and which events there are would hang on the batch.

    Source: torch's `aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`,
    set_params_splitkv.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.args[:3]):
        return
    query, key = call.args[:2]
    dropout = call.args[3] if len(call.args) > 3 else call.kwargs.get("dropout_p", 0.0)
    batch, heads, length, width = query.shape
    if dropout > 0:
        return
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    splits = _num_splits(
        batch * heads * math.ceil(length / 64),
        2 * multiprocessors(architecture),
        math.ceil(key.shape[2] / block),
    )
    if splits > 1:
        yield Inside(splits * batch * heads * length * 4)
        yield Inside(splits * batch * heads * length * _rounded(width, 32) * 4)


def _num_splits(num_blocks: int, num_processors: int, num_key_blocks: int) -> int:
    """Into how many parts the keys are divided: the fewest within 85 % of the best occupancy.

    Source: the same file, num_splits_heuristic.
    """
    if num_blocks >= 0.8 * num_processors:
        return 1
    most = min(128, num_processors, num_key_blocks)
    occupancy = {}
    for splits in range(1, most + 1):
        per_split = math.ceil(num_key_blocks / splits)
        if splits == 1 or per_split != math.ceil(num_key_blocks / (splits - 1)):
            waves = num_blocks * splits / num_processors
            occupancy[splits] = waves / math.ceil(waves)
    best = max(occupancy.values(), default=0.0)
    return min((s for s, share in occupancy.items() if share >= 0.85 * best), default=1)


def flash_backward(call: Call, architecture: Architecture) -> Iterator[Inside | Returned]:
    """Sums in fp32 for the gradient of the queries, whose length is rounded up to 128.

    Source: `flash_api.cpp`, mha_bwd; the copies: `cuda/attention_backward.cu`,
    _flash_attention_backward.
    """
    grad, query, key, _, out = call.args[:5]
    batch, heads, length, width = query.shape
    for tensor in (grad, out):
        yield from _contiguous_copy(tensor.transpose(1, 2))
    yield from map(Returned, range(3))
    yield sized(bytes_in_blocks_of_128, 4, batch * heads, length)
    parts = 1
    if torch.are_deterministic_algorithms_enabled():
        parts = math.ceil(multiprocessors(architecture) / (batch * heads))
    yield sized(bytes_in_blocks_of_128, parts * _rounded(width, 32) * 4, batch * heads, length)
    if key.shape[1] != heads:
        for _ in ("keys", "values"):
            yield Inside(batch * key.shape[2] * heads * width * query.itemsize)


@rule
def bytes_in_blocks_of_128(itemsize: int, rows: int, length: int) -> int:
    """Rows whose length is rounded up."""
    return itemsize * rows * _rounded(length, 128)


def efficient_forward(call: Call, _: Architecture) -> Iterator[Inside]:
    """Sums in fp32 for heads too wide for registers.

    Source: `mem_eff_attention/kernel_forward.h`, kNeedsOutputAccumulatorBuffer, and
    `kernels/cutlassF.h`, both in torch's include folder.
    """
    query, _, value = call.args[:3]
    if query.itemsize == 2 and max(query.shape[-1], value.shape[-1]) > 128:
        yield Inside(math.prod(query.shape[:3]) * value.shape[-1] * 4)


def efficient_backward(
    call: Call, architecture: Architecture
) -> Iterator[Inside | Freed | Returned]:
    """The dot products of gradient and result, then sums in fp32.

    Source: torch's `aten/src/ATen/native/transformers/cuda/attention_backward.cu`,
    _efficient_attention_backward. Left out: batches above 65,535, which are cut.
    """
    grad, query, key, value, _, out = call.args[:6]
    dropout = call.args[9]
    kernel = _backward_kernel(query, value, dropout=dropout > 0, architecture=architecture)
    yield from _contiguous_copy(grad.transpose(1, 2))
    yield from map(Returned, range(len(call.result)))
    yield from _dots(out, kernel)
    batch, heads, length, width = query.shape
    shape = batch * heads, length, key.shape[2], width, value.shape[-1]
    yield sized(bytes_of_efficient_backward, *kernel, *shape)


def _dots(out: Tensor, kernel: _Backward) -> Iterator[Inside | Freed]:
    """One number for each query: from the kernel itself, or from a product that is then summed."""
    num_dots_bytes = math.prod(out.shape[:3]) * 4
    if kernel.computes_dots:
        yield Inside(num_dots_bytes)
        return
    num_full = 1 if out.itemsize == 4 else 3  # the product, and its factors in fp32
    going = [Inside(out.numel() * 4) for _ in range(num_full)]
    going += [Inside(num_dots_bytes)]
    yield from going
    if out.shape[1] > 1 and out.shape[2] > 1:
        yield Inside(num_dots_bytes)
        yield Freed(tuple(going))
    else:
        yield Freed(tuple(going[:-1]))


class _Backward(NamedTuple):
    """One instance of the kernel template: blocks of queries and keys, the widest head it takes."""

    queries: int
    keys: int
    widest: int
    is_half: bool
    capability: int

    @property
    def keeps_sums(self) -> bool:
        """Whether the gradients of keys and values stay in registers: kOutputInRF."""
        return self.is_half and self.widest <= self.queries

    @property
    def computes_dots(self) -> bool:
        """Source: `mem_eff_attention/kernel_backward.h`, kKernelComputesDelta."""
        return self.is_half and (self.keeps_sums or self.capability != 70)


@rule
def bytes_of_efficient_backward(*numbers: int) -> int:
    """Sums in fp32 of gradients that do not stay in registers.

    Args:
        numbers: the kernel's own, then heads of all samples, queries, keys, and the width of a key
            and of a value.

    Source: the same file, Params::workspace_size and the lengths it adds up.
    """
    queries, keys, widest, is_half, capability, *shape = numbers
    kernel = _Backward(queries, keys, widest, bool(is_half), capability)
    rows, length, num_keys, width, value_width = shape
    num_floats = 0
    if kernel.is_half and not kernel.keeps_sums:
        splits = max(1, min(math.ceil(num_keys / kernel.keys), 200 // rows))
        if kernel.capability < 70:
            splits = 1
        for size in (width, value_width):
            num_floats += splits * kernel.keys * _rounded(size, kernel.queries)
    if kernel.is_half or kernel.capability >= 70:
        blocks = math.ceil(length / kernel.queries) * math.ceil(width / kernel.keys)
        num_floats += blocks * (4 + kernel.queries * kernel.keys)
    return rows * _rounded(num_floats, 4) * 4


def _backward_kernel(
    query: Tensor, value: Tensor, *, dropout: bool, architecture: Architecture
) -> _Backward:
    """The first kernel of torch's list that takes the heads and fits in shared memory.

    Blocks of 128 queries are for architectures with much shared memory, as the generator of the
    list has it: `mem_eff_attention/kernels/generate_kernels.py`.

    Source: `mem_eff_attention/kernels/cutlassB.h`, in torch's include folder.
    """
    is_half = query.itemsize == 2
    width = max(query.shape[-1], value.shape[-1])
    capability = next(c for c in (80, 75, 70, 50) if architecture >= divmod(c, 10))
    queries, keys, widest = 64, 64, next((w for w in (32, 64, 128) if width <= w), _UNLIMITED)
    much = has_much_shared_memory(architecture) or (architecture[0] == 7 and capability == 70)
    if capability == 80 and is_half and widest == 128:
        if architecture in ((8, 6), (8, 9)) and width <= 96 and not dropout:
            queries, widest = 128, 96
        elif much:
            queries, keys = 128, 128
    elif widest >= 128 and much and (is_half or capability == 80):
        queries = 128
    return _Backward(queries, keys, widest, is_half, capability)


def cudnn_forward(call: Call, _: Architecture) -> Iterator[Unsure]:
    """Nothing is stated; at most the results once more.

    Source: torch's `aten/src/ATen/native/cudnn/MHA.cpp`, run_cudnn_SDP_fprop, which takes what the
    plan asks for from torch's allocator. Not measured.
    """
    yield Unsure(0, call.result[0].numel() * call.result[0].itemsize)


def cudnn_backward(call: Call, _: Architecture) -> Iterator[Inside | Unsure]:
    """Stated as flash attention's: the gradient of the queries in fp32, a dot product for each.

    Source: the same file, run_cudnn_SDP_bprop. Not measured: it may be none, or as much again.
    """
    query = call.args[1]
    num_bytes = query.numel() * 4 + math.prod(query.shape[:3]) * 4
    yield Inside(num_bytes)
    yield Unsure(num_bytes, num_bytes)


def _contiguous_copy(tensor: Tensor) -> Iterator[Inside]:
    if not tensor.is_contiguous():
        yield Inside(tensor.numel() * tensor.itemsize)


def _rounded(number: int, multiple: int) -> int:
    return math.ceil(number / multiple) * multiple
