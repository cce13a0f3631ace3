"""What an operator needs inside, on a CPU, beside its inputs and results.

Only what grows with the tensors is here; buffers of fixed size are part of the machine's constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from search.memory.convolution import convolution_backward_bytes, convolution_bytes
from search.memory.reductions import mean_bytes, sum_bytes

_aten = torch.ops.aten


def scratch_bytes(operator: Any, args: tuple[Any, ...]) -> int:
    """Bytes that are there only while the operator runs."""
    known = _KNOWN.get(operator)
    if known is not None:
        return known(args)
    if torch.Tag.pointwise in operator.tags:
        return _promoted_bytes([leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)])
    return 0


def _mask_bytes(scores: Tensor) -> int:
    """One byte for each score: which of them are minus infinity, so that no row divides by 0.

    Source: `_safe_softmax` in torch's `aten/src/ATen/native/transformers/attention.cpp`.
    """
    return scores.numel()


def _promoted_bytes(tensors: list[Tensor]) -> int:
    """Copies of the inputs that are not of the common type, such as bf16 added to fp32.

    Masks are read as they are. Numbers without dimensions take no part.

    Source: torch's `aten/src/ATen/TensorIterator.cpp`, promote_inputs_to_common_dtype, which
    converts whole inputs on a CPU; measured in `tests/search/memory/test_scratch.py`.
    """
    numbers = [tensor for tensor in tensors if tensor.dim() and tensor.dtype is not torch.bool]
    if not numbers:
        return 0
    common = functools.reduce(torch.promote_types, (tensor.dtype for tensor in numbers))
    return sum(tensor.numel() * common.itemsize for tensor in numbers if tensor.dtype is not common)


_KNOWN: dict[Any, Callable[[tuple[Any, ...]], int]] = {
    _aten._safe_softmax.default: lambda args: _mask_bytes(args[0]),  # noqa: SLF001 - in unfused attention
    _aten.convolution.default: convolution_bytes,
    _aten.convolution_backward.default: convolution_backward_bytes,
    _aten.mean.default: lambda args: mean_bytes(args[0]),
    _aten.mean.dim: lambda args: mean_bytes(args[0]),
    _aten.sum.default: lambda args: sum_bytes(args[0], None),
    _aten.sum.dim_IntList: lambda args: sum_bytes(args[0], args[1]),
}
"""Of its arguments, what an operator needs inside; all others are taken to need nothing."""
