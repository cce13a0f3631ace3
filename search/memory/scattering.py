"""Where the backward pass writes into zeros of its own, but makes another tensor of fake ones.

The gradients of gather, sort, max, indexing and their like are zeros with a few numbers put in.
Torch puts them in without a second tensor, except while a dispatch mode listens, as it does here.

Source: torch's `torch/csrc/autograd/FunctionsManual.cpp` and
`aten/src/ATen/native/{ReduceOps,TensorAdvancedIndexing}.cpp` (value_selecting_reduction_backward,
gather_backward, index_backward), which ask `aten/src/ATen/TensorSubclassLikeUtils.h`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten

_IN_PLACE: Mapping[Any, Callable[..., Any]] = {
    _aten.index_add.default: _aten.index_add_.default,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
    _aten.scatter_add.default: _aten.scatter_add_.default,
}

_PYTHON_REFERENCES, _REFERENCES, _STORAGE_REFERENCES = 4, 5, 2
"""The most that torch's own formulas hold of such zeros: the objects, tensors, storages."""


def is_scattering(operator: Any) -> bool:
    """Whether it is one of those that `scattered_in_place` may give another for."""
    return operator in _IN_PLACE


def scattered_in_place(operator: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What a formula of the backward pass runs of real tensors; None for the operator itself."""
    if operator not in _IN_PLACE or torch.is_grad_enabled():
        return None
    in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - as torch.utils.checkpoint asks it
    return _IN_PLACE[operator] if in_backward and _is_alone(args[0]) else None


def _is_alone(zeros: Tensor) -> bool:
    """Whether nobody but the formula knows the tensor. A function of one's own has it in a name.

    Source: the counts are those of `tests/search/memory/test_scattering.py`.
    """
    storage = zeros.untyped_storage()._cdata  # noqa: SLF001 - the storage's identity
    return (
        sys.getrefcount(zeros) <= _PYTHON_REFERENCES
        and zeros._use_count() <= _REFERENCES  # type: ignore[attr-defined]  # noqa: SLF001
        and torch._C._storage_Use_Count(storage) <= _STORAGE_REFERENCES  # noqa: SLF001
    )
