"""What is known of an operator of torch before its arguments are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch

from search.memory.scattering import is_scattering

_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001
_COMPOSED_HERE = torch._C.DispatchKey.AutogradCPU  # noqa: SLF001 - where a target installs its own


class Operator(NamedTuple):
    """Answers that a trace would else look up at each call.

    `replacement` is what the target runs instead. `composition` is where an operator that is made
    of others says how, None for all else.
    """

    itself: Any
    name: str
    replacement: Callable[..., Any] | None
    composition: torch._C.DispatchKey | None
    is_scattering: bool
    is_any: bool
    is_writing: bool

    @classmethod
    def of(cls, operator: Any, replacement: Callable[..., Any] | None) -> Self:
        """All that is known of one."""
        name = str(operator)
        whole = replacement is not None
        return cls(
            itself=operator,
            name=name,
            replacement=replacement,
            composition=None if whole else _composition(operator),
            is_scattering=not whole and is_scattering(operator),
            is_any=name.startswith("aten.any."),
            is_writing=operator._schema.is_mutable,  # noqa: SLF001 - torch has no public name for it
        )


def _composition(operator: Any) -> torch._C.DispatchKey | None:
    """How torch makes it of others. In inference mode it is dispatched whole.

    Source: torch's `torch/_ops.py`, OpOverload.decompose.
    """
    if operator.namespace == "prim" or not operator.has_kernel_for_dispatch_key(_COMPOSED):
        return None
    installed = operator.has_kernel_for_dispatch_key(_COMPOSED_HERE)
    return _COMPOSED_HERE if installed else _COMPOSED
