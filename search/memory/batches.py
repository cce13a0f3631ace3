"""What stands for the data of a traced run: the micro-batches of each step, and those held out."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from search.memory.events import Part, Phase
from search.objective import Split, usual_batch
from search.training_params import TrainingParams, micro_batch_size

if TYPE_CHECKING:
    from search.memory.recorder import Recorder
    from search.objective import Batch, Objective
    from search.results import Params

MAX_MICRO_BATCHES = 2
"""The first micro-batch creates the gradients, the second adds to them; all others repeat it."""
_HELD_OUT_BATCHES = 2
_MOST_LAST = 4
"""Batches of other shapes at the end of held-out data: some fewer samples, then some shorter."""

Shapes = Mapping[str, tuple[torch.Size, torch.dtype]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatches:
    """The smaller batches that data end with, by their shapes.

    Attributes:
        training: the micro-batches of the last step that are not full ones.
        num_full: full micro-batches of that step, which come before them.
        held_out: the batches after the last full one.
    """

    training: tuple[Shapes, ...] = ()
    num_full: int = 0
    held_out: tuple[Shapes, ...] = ()


def last_batches(objective: Objective, params: Params, *, num_tokens: int) -> LastBatches:
    """How the data of a trial end that trains on `num_tokens`; the held-out data are read through.

    Where ordinary batches are shorter than the largest, no one knows how many tokens are left for
    the last step: its batches are left out.
    """
    step_tokens = TrainingParams.of(params).batch_size * objective.tokens_per_sample(params)
    rest = 0 if usual_batch(objective, params) else num_tokens % step_tokens
    training: list[Shapes] = []
    if rest:
        found = objective.data(params, Split.TRAIN, seed=0, num_tokens=rest)
        training = list(map(_shapes, found))
    full = _shapes(objective.batch(params, Split.TRAIN))
    return LastBatches(
        training=tuple(shapes for shapes in training if shapes != full),
        num_full=training.count(full),
        held_out=_after_the_last_full(
            objective.data(params, Split.HELD_OUT, seed=0),
            _shapes(objective.batch(params, Split.HELD_OUT)),
        ),
    )


def _after_the_last_full(batches: Iterable[Batch], full: Shapes) -> tuple[Shapes, ...]:
    last: deque[Shapes] = deque(maxlen=_MOST_LAST)
    for shapes in map(_shapes, batches):
        if shapes == full:
            last.clear()
        else:
            last.append(shapes)
    return tuple(last)


def _shapes(batch: Batch) -> Shapes:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in batch.items()}


def _like(shapes: Shapes) -> Batch:
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}


def training_phases(
    objective: Objective, params: Params, *, num_steps: int, last: LastBatches
) -> tuple[Phase, ...]:
    """The phase of each step that is traced.

    A longest batch comes after the usual ones: what those left in the cache of an allocator then
    does not fit.
    """
    longest = [Phase.LONGEST_BATCH] if usual_batch(objective, params) else []
    smaller = [Phase.LAST_BATCH] if last.training else []
    return (*(Phase.STEP_1, Phase.STEP_2)[:num_steps], *longest, *smaller)


def num_micro_batches(params: Params) -> int:
    """Micro-batches of one optimizer step that one process computes."""
    return TrainingParams.of(params).samples_per_rank // micro_batch_size(params)


def traced_params(params: Params) -> Params:
    """A configuration with no more micro-batches in a step than are run."""
    samples = micro_batch_size(params)
    count = min(num_micro_batches(params), MAX_MICRO_BATCHES)
    whole = count * samples * TrainingParams.of(params).world_size
    return {**params, "micro_batch_size": samples, "batch_size": whole}


class _HeldBatch(dict[str, Tensor]):
    """A batch that keeps alive the inputs of the micro-batches that are not run."""

    untraced: tuple[Tensor, ...] = ()


def training_batches(
    objective: Objective,
    params: Params,
    recorder: Recorder,
    *,
    phases: Sequence[Phase],
    last: LastBatches,
) -> Iterator[Batch]:
    """The micro-batches of each step, one step a phase, beside those that are made ahead."""
    num_ahead = TrainingParams.of(params).prefetch
    ahead = [objective.batch(params, Split.TRAIN) for _ in range(num_ahead)]
    recorder.assign(Part.INPUTS, (tensor for batch in ahead for tensor in batch.values()))
    for phase in phases:
        for made, num_untraced in _step(objective, params, phase, last):
            batch = _HeldBatch(made)
            del made
            if num_untraced:
                batch.untraced = tuple(
                    torch.empty((num_untraced, *tensor.shape), dtype=tensor.dtype)
                    for tensor in batch.values()
                )
            recorder.assign(Part.INPUTS, (*batch.values(), *batch.untraced))
            recorder.holds_zeros(batch.values())
            yield batch
            del batch


def _step(
    objective: Objective, params: Params, phase: Phase, last: LastBatches
) -> Iterator[tuple[Batch, int]]:
    """Each micro-batch that is run, with the number of those that only wait beside it.

    Of several ranks the first reads those of all others too, and lets them go.
    """
    world_size = TrainingParams.of(params).world_size
    if phase is Phase.LAST_BATCH:
        rounds, rest = divmod(last.num_full, world_size)
        for index in range(world_size if rounds else 0):
            yield objective.batch(params, Split.TRAIN), 0 if index else rounds - 1
        for _ in range(rest):
            yield objective.batch(params, Split.TRAIN), 0
        for shapes in last.training:
            yield _like(shapes), 0
        return
    num_traced = min(num_micro_batches(params), MAX_MICRO_BATCHES)
    for index in range(num_traced * world_size):
        num_waiting = 0 if index else num_micro_batches(params) - num_traced
        yield _full(objective, params, phase), num_waiting


def _full(objective: Objective, params: Params, phase: Phase) -> Batch:
    usual = None if phase is Phase.LONGEST_BATCH else usual_batch(objective, params)
    return usual or objective.batch(params, Split.TRAIN)


def held_out_batches(
    objective: Objective, params: Params, recorder: Recorder, *, last: LastBatches
) -> Iterator[Batch]:
    """Two of the largest, and those that the held-out data end with."""
    largest = (objective.batch(params, Split.HELD_OUT) for _ in range(_HELD_OUT_BATCHES))
    for batch in itertools.chain(largest, map(_like, last.held_out)):
        recorder.assign(Part.INPUTS, batch.values())
        recorder.holds_zeros(batch.values())
        yield batch
        del batch
