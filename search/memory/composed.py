"""What torch does otherwise with fake tensors than with real ones, put right.

Under a dispatch mode torch takes every tensor for a subclass, and then writes none in place that
it made itself: it asks for memory that a real run does not need.

Source: torch's `aten/src/ATen/TensorSubclassLikeUtils.h`, isTensorSubclassLike.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import graph

_ENGINE = graph._engine_run_backward.__code__  # noqa: SLF001 - where Python calls the engine
_BETWEEN = (
    "search/memory/composed.py",
    "search/memory/recorder.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
)

if TYPE_CHECKING:
    from search.memory.events import Event


@contextmanager
def bias_added_in_place() -> Iterator[None]:
    """While inside, `linear` adds its bias where the product lies."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("linear", _linear, "AutogradCPU")  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no other way


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Source: torch's `aten/src/ATen/native/Linear.cpp`, linear and _flatten_nd_linear."""
    if bias is None:
        return torch.matmul(x, weight.t())
    if x.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    if x.dim() == 3 and x.is_contiguous():
        rows = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t())
        return rows.view(*x.shape[:-1], weight.shape[0])
    return torch.matmul(x, weight.t()).add_(bias)


def is_asked_by_the_engine() -> bool:
    """Whether an operator in a backward pass comes from torch's engine, not from Python code.

    A function of one's own may add in its backward, and that sum is a new tensor. Only what torch
    puts between an operator and its dispatch mode is passed over.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the stack is the only place where this shows
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_code is _ENGINE


def gradients_summed_in_place(events: Iterable[Event], sums: Mapping[int, int]) -> list[Event]:
    """The events of a run in which a gradient is added where one lies that has no other use.

    That it has none shows in the events: it goes right after the sum has appeared.

    Args:
        events: in order.
        sums: for sums of gradients, the storage of the gradient that came first by that of the sum.

    Source: torch's `torch/csrc/autograd/input_buffer.cpp`, accumulate.
    """
    found = list(events)
    same_as, gone = _reused(found, sums)
    written = {*same_as, *same_as.values()}
    parts = {
        same_as.get(event.storage, event.storage): event.part
        for event in found
        if event.storage in written
    }
    num_bytes: dict[int, int] = {}
    kept = []
    for index, event in enumerate(found):
        if event.storage not in written:
            kept.append(event)
        elif index not in gone:
            storage = same_as.get(event.storage, event.storage)
            size = num_bytes.setdefault(storage, event.num_bytes)
            appears = event.num_bytes > 0
            kept.append(
                event._replace(
                    storage=storage,
                    num_bytes=size if appears else -size,
                    part=parts[storage],
                )
            )
    return kept


def _reused(events: list[Event], sums: Mapping[int, int]) -> tuple[dict[int, int], set[int]]:
    """By each sum the gradient it is written over, and which events there are not then."""
    same_as: dict[int, int] = {}
    gone: set[int] = set()
    for index, event in enumerate(events):
        if event.storage not in sums or event.num_bytes <= 0:
            continue
        first, deaths = sums[event.storage], _deaths_after(events, index)
        if first in deaths:
            same_as[event.storage] = same_as.get(first, first)
            gone |= {index, deaths[first]}
    return same_as, gone


def _deaths_after(events: list[Event], index: int) -> dict[int, int]:
    """The storages that go before another appears, and where."""
    deaths = {}
    for later in range(index + 1, len(events)):
        if events[later].num_bytes > 0:
            break
        deaths[events[later].storage] = later
    return deaths
