"""Tensors whose elements are all one known number, as in the batches of zeros that are traced.

Models ask them questions: where no text of a batch is padded, transformers leaves out the mask of
attention, for which it looks at the mask's values. Zeros answer as a batch with padding does, the
one that takes more.

Left out: operators that no such question is made of. What they give is not known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_Rule = Callable[..., float]
_RULES: Mapping[Any, _Rule] = {
    _aten._to_copy.default: lambda value: value,  # noqa: SLF001 - the operator behind `.to()`
    _aten.clone.default: lambda value: value,
    _aten.eq.Scalar: lambda value, other: float(value == other),
    _aten.ne.Scalar: lambda value, other: float(value != other),
    _aten.logical_not.default: lambda value: float(not value),
    _aten.all.default: lambda value: float(value != 0),
    _aten.any.default: lambda value: float(value != 0),
}
"""What an operator makes of such a tensor and of plain numbers: one number everywhere.

A view shares the storage, by which a tensor is known here, and needs no rule.
"""


class Uniform:
    """The numbers of the storages that are known to hold one everywhere, as long as they live."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._values: dict[int, tuple[float, weakref.ref[Any]]] = {}

    def begin(self, tensors: Iterable[Tensor], value: float) -> None:
        """Each of these tensors holds this number from now on."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._values[_key(tensor)] = value, weakref.ref(storage)

    def value(self, tensor: Tensor) -> float | None:
        """The number that a tensor holds everywhere; None where nobody knows."""
        value, storage = self._values.get(_key(tensor), (None, None))
        return value if storage is not None and storage() is not None else None

    def follow(self, operator: Any, args: tuple[Any, ...], result: Any) -> None:
        """Knows what an operator gave, where it hangs on what is known."""
        rule = _RULES.get(operator)
        if rule is None or (value := self.value(args[0])) is None:
            return
        self.begin([result], rule(value, *args[1:]))

    def forget(self, tensor: Tensor) -> None:
        """What is written to holds no known number any more."""
        self._values.pop(_key(tensor), None)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity, view or not
