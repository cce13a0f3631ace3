"""What an operator needs inside, on a CPU, beside its inputs and results.

Only what grows with the tensors is here; buffers of fixed size are part of the machine's constant.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
_SAFE_SOFTMAX = _aten._safe_softmax.default  # noqa: SLF001 - softmax inside unfused attention


def scratch_bytes(operator: Any, args: tuple[Any, ...]) -> int:
    """Bytes that are there only while the operator runs."""
    if operator is _SAFE_SOFTMAX:
        return _mask_bytes(args[0])
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
