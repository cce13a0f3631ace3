"""What a traced run stands for: the device whose memory is booked, and how its kernels behave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from search.memory.formulas import Formula, Rule
from search.memory.scratch import scratch_bytes


class Inside(NamedTuple):
    """A block an operator asks for beside its results.

    It goes with the operator's end; one that `stays` is kept for good, as a library's workspace is.
    Where a size follows no polynomial it has a `formula`: see `sized`.
    """

    num_bytes: int
    stays: bool = False
    formula: Formula | None = None


def sized(rule: Rule, *numbers: int) -> Inside:
    """A block whose size is a rule of whole numbers; stated also where it is 0 for these."""
    formula = Formula(rule.__name__, numbers)
    return Inside(formula.num_bytes(), formula=formula)


class Freed(NamedTuple):
    """Blocks, by identity, that an operator gives back before its end."""

    blocks: tuple[Inside, ...]


class Unsure(NamedTuple):
    """How far memory may lie below or above what is stated.

    What `adds_up` is kept; the rest is there one at a time.
    """

    below_bytes: int
    above_bytes: int
    adds_up: bool = False


class Returned(NamedTuple):
    """A result that appears now, by its place among the results.

    Where an operator names none, all are there before its blocks; others come after them.
    """

    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator that has run on fake tensors.

    `in_backward` tells the thread of the autograd engine, which has library handles of its own.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    in_backward: bool


class Target(Protocol):
    """A device to trace for. One object serves one trace at a time."""

    @property
    def device(self) -> torch.device:
        """Where the run is told to put its tensors."""
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the device's memory."""
        ...

    @property
    def uncertain(self) -> tuple[Unsure, ...]:
        """How far the calls of the last trace may lie beside what was booked."""
        ...

    def installed(self) -> AbstractContextManager[None]:
        """Makes torch choose as it would on the device, and starts with no workspace."""
        ...

    def replacement(self, operator: Any) -> Callable[..., Any] | None:
        """What runs on the device instead of an operator; None for the operator itself."""
        ...

    def inside(self, call: Call) -> Iterable[Inside | Freed | Returned]:
        """What the operator's kernel asks for and gives back, in order."""
        ...


class Cpu:
    """The CPU this runs on: everything is in its memory, and torch chooses by itself."""

    device = torch.device("cpu")
    uncertain: tuple[Unsure, ...] = ()

    def holds(self, tensor: Tensor) -> bool:  # noqa: ARG002 - all tensors are
        """True."""
        return True

    def installed(self) -> AbstractContextManager[None]:
        """Changes nothing."""
        return nullcontext()

    def replacement(self, operator: Any) -> None:
        """None."""

    def inside(self, call: Call) -> Iterable[Inside | Freed | Returned]:
        """See `search.memory.scratch`."""
        num_bytes = scratch_bytes(call.operator, call.args)
        return (Inside(num_bytes),) if num_bytes else ()
