"""What CUDA's kernels ask of the allocator beside an operator's results.

Left out, because small or gone before the result is there: buffers of cub's sorts, below a few MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from search.memory import cuda_attention_scratch as attention
from search.memory import cuda_recurrent as recurrent
from search.memory.cuda_convolution import convolution_backward, convolution_forward
from search.memory.cuda_device import Architecture, multiprocessors
from search.memory.cuda_reductions import reduction_buffers
from search.memory.formulas import rule
from search.memory.target import Call, Freed, Inside, Returned, Unsure, sized

_aten = torch.ops.aten
_ROWS_PER_SUM = 10
_FEW_INDICES = 3072
_NORM_CHUNK = 65_536
_TALL = 64 * 1024


def has_scratch(operator: Any) -> bool:
    """Whether `scratch` may tell anything of an operator's calls."""
    return operator in _KERNELS


def scratch(call: Call, architecture: Architecture) -> Iterator[Inside | Freed | Returned | Unsure]:
    """The blocks of one call, in order."""
    kernel = _KERNELS.get(call.operator)
    if kernel is not None:
        yield from kernel(call, architecture)


def _softmax_backward(call: Call, _: Architecture) -> Iterator[Inside]:
    """The gradient times the result.

    Source: torch's `aten/src/ATen/native/cuda/SoftMax.cu`, softmax_backward_cuda_out.
    """
    yield Inside(call.args[0].numel() * call.args[0].itemsize)


def _safe_softmax(call: Call, _: Architecture) -> Iterator[Inside]:
    """The softmax before rows of minus infinity are made 0, and which scores and rows those are.

    Source: torch's `aten/src/ATen/native/transformers/attention.cpp`, _safe_softmax.
    """
    scores = call.args[0]
    yield Inside(call.result.numel() * call.result.itemsize)
    yield Inside(scores.numel())
    yield Inside(scores.numel() // max(1, scores.shape[call.args[1]]))


def _embedding_backward(call: Call, _: Architecture) -> Iterator[Inside | Freed | Returned]:
    """The sorted indices, and sums of at most ten rows each, in fp32; nothing for few indices.

    Source: torch's `aten/src/ATen/native/cuda/Embedding.cu`, embedding_dense_backward_cuda, and
    `EmbeddingBackwardKernel.cu`, embedding_backward_cuda_kernel.
    """
    grad, indices, num_weights, _padding, by_frequency = call.args
    least = 0 if by_frequency else _FEW_INDICES + 1
    numbers = indices.itemsize, indices.numel(), least
    for _sorted in ("indices", "their order"):
        yield sized(bytes_of_many_indices, *numbers)
    sorting = [sized(bytes_of_many_indices, *numbers)]  # 0, 1, 2...
    sorting += [sized(bytes_of_many_indices, 2 * indices.itemsize, *numbers[1:])]  # both sorted
    yield from sorting
    yield Freed(tuple(sorting))
    if by_frequency:
        yield sized(bytes_of_many_indices, *numbers)
    yield Returned(0)
    for _start in ("of segments", "of their sums", "how many sums"):
        yield sized(bytes_of_segments, *numbers, num_weights)
    yield sized(bytes_of_sums, *numbers, num_weights)
    widest = grad.shape[-1] * max(4, grad.itemsize)
    yield sized(bytes_of_sums, widest, *numbers[1:], num_weights)


@rule
def bytes_of_many_indices(itemsize: int, count: int, least: int) -> int:
    """One number for each index; nothing below `least` indices."""
    return itemsize * count if count >= least else 0


@rule
def bytes_of_segments(itemsize: int, count: int, least: int, num_weights: int) -> int:
    """One number for each weight that may be there."""
    return itemsize * min(count, num_weights) if count >= least else 0


@rule
def bytes_of_sums(itemsize: int, count: int, least: int, num_weights: int) -> int:
    """One number, or row, for each sum: ten of the indices, or fewer at the end of each weight."""
    sums = count // _ROWS_PER_SUM + min(count, num_weights)
    return itemsize * sums if count >= least else 0


def _dropout(_call: Call, _: Architecture) -> Iterator[Returned]:
    """The mask is there before the result.

    Source: torch's `aten/src/ATen/native/cuda/Dropout.cu`, dropout_cuda.
    """
    yield from (Returned(1), Returned(0))


def _index_put(call: Call, _: Architecture) -> Iterator[Inside]:
    """Where the gradient of an index goes: positions, sorted, and in which order they were.

    Source: torch's `aten/src/ATen/native/cuda/Indexing.cu`, index_put_with_sort_kernel.
    """
    accumulates = call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)
    if accumulates:
        indices = [index for index in call.args[1] if index is not None]
        count = torch.broadcast_tensors(*indices)[0].numel()  # type: ignore[no-untyped-call]
        for _position in range(3):
            yield Inside(count * 8)


def _layer_norm_backward(call: Call, architecture: Architecture) -> Iterator[Inside]:
    """Partial sums for weight and bias, where rows are many and short.

    Source: torch's `aten/src/ATen/native/cuda/layer_norm_kernel.cu`,
    LaunchGammaBetaBackwardCUDAKernel.
    """
    grad, x, shape = call.args[:3]
    if not grad.is_contiguous():
        yield Inside(grad.numel() * grad.itemsize)
    columns = math.prod(shape)
    rows = x.numel() // max(1, columns)
    for gradient in call.result[1:]:
        if gradient is not None:
            numbers = gradient.itemsize, rows, columns, multiprocessors(architecture)
            yield sized(bytes_of_norm_sums, *numbers)


@rule
def bytes_of_norm_sums(itemsize: int, rows: int, columns: int, processors: int) -> int:
    """Partial sums of a column by each block of threads, where rows are many and short."""
    if rows <= _TALL or columns // 32 >= processors // 2:
        return 0
    blocks = min(_TALL // 2 // math.ceil(columns / 32), math.ceil(rows / 32))
    return blocks * columns * itemsize


def _group_norm_backward(call: Call, _: Architecture) -> Iterator[Inside]:
    """Sums for each sample and channel, and factors for each group.

    Source: torch's `aten/src/ATen/native/cuda/group_norm_kernel.cu`,
    GroupNormBackwardKernelImplInternal.
    """
    samples, channels, _positions, groups = call.args[5:9]
    for length in (channels, channels, channels, groups, groups):
        yield Inside(samples * length * 4)


def _foreach_norm(call: Call, _: Architecture) -> Iterator[Inside]:
    """One number for each 65,536 elements of the longest tensor, for every tensor.

    Source: torch's `aten/src/ATen/native/cuda/ForeachReduceOp.cu`, foreach_tensor_norm_cuda, and
    `MultiTensorApply.cuh`, kChunkSize.
    """
    tensors = call.args[0]
    chunks = max(math.ceil(tensor.numel() / _NORM_CHUNK) for tensor in tensors)
    yield Inside(len(tensors) * chunks * max(4, tensors[0].itemsize))


_Kernel = Callable[[Call, Architecture], Iterator[Inside | Freed | Returned | Unsure]]
_KERNELS: Mapping[Any, _Kernel] = {
    _aten._softmax_backward_data.default: _softmax_backward,  # noqa: SLF001
    _aten._safe_softmax.default: _safe_softmax,  # noqa: SLF001
    _aten.native_dropout.default: _dropout,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten._index_put_impl_.default: _index_put,
    _aten.index_put.default: _index_put,
    _aten.index_put_.default: _index_put,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten._fused_rms_norm_backward.default: _layer_norm_backward,  # noqa: SLF001
    _aten.native_group_norm_backward.default: _group_norm_backward,
    _aten.sum.dim_IntList: reduction_buffers,
    _aten.mean.dim: reduction_buffers,
    _aten._foreach_norm.Scalar: _foreach_norm,  # noqa: SLF001
    _aten.convolution.default: convolution_forward,
    _aten.convolution_backward.default: convolution_backward,
    _aten._cudnn_rnn.default: recurrent.forward_scratch,  # noqa: SLF001
    _aten._cudnn_rnn_backward.default: recurrent.backward_scratch,  # noqa: SLF001
    _aten._scaled_dot_product_cudnn_attention.default: attention.cudnn_forward,  # noqa: SLF001
    _aten._scaled_dot_product_cudnn_attention_backward.default: attention.cudnn_backward,  # noqa: SLF001
    _aten._scaled_dot_product_flash_attention.default: attention.flash_forward,  # noqa: SLF001
    _aten._scaled_dot_product_flash_attention_backward.default: attention.flash_backward,  # noqa: SLF001
    _aten._scaled_dot_product_efficient_attention.default: attention.efficient_forward,  # noqa: SLF001
    _aten._scaled_dot_product_efficient_attention_backward.default: attention.efficient_backward,  # noqa: SLF001
}
