"""What may be changed in a configuration that does not fit, and what each change keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from search.memory.events import Part
from search.memory.feasibility import accumulated_sizes
from search.optimizers import Optimizer, has_torchao
from search.results import Params, ParamValue
from search.training_params import Precision, TrainingParams

_MOST_LENGTHS = 8
"""More values than these are a range, of which a few are tried."""
_LOSS_CHUNKS = 8
"""An eighth of the logits is small beside what else there is."""
_STATES = frozenset({str(Part.OPTIMIZER)})
_GRADIENTS = frozenset({str(Part.GRADIENTS)})
_LOGITS = frozenset({str(Part.LOGITS)})
_ACTIVATIONS = frozenset(map(str, (Part.ACTIVATIONS, Part.LOGITS, Part.RECOMPUTED)))


class Keeps(IntEnum):
    """What a change leaves as it was, the most first."""

    RESULT = 0
    """The step updates the weights as before: accumulation, checkpointing, chunks of the loss,
    steps in the backward pass. (Layers that look at a whole micro-batch, such as batch norm, do see
    a smaller one.)"""
    WEIGHTS = 1
    """Products are rounded, weights and updates are not: `bf16-mixed`."""
    PROBLEM = 2
    """Weights or states are rounded, but the same is learned in the same way: `bf16-true`,
    `adamw-8bit`."""
    NOTHING = 3
    """Another update rule or shorter samples: hyperparameters must be found anew."""


class Way(NamedTuple):
    """One dimension and the values to try in turn, the least change first.

    `lessens` are the parts of a peak that it can make smaller; none where that may be any.
    """

    keeps: Keeps
    name: str
    values: tuple[ParamValue, ...]
    lessens: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """The dimension that is the length of a sample, and the values of it that are searched."""

    name: str
    searched: Sequence[ParamValue] = ()


def ways(params: Params, length: Length | None) -> tuple[Way, ...]:
    """All that may be changed in a configuration, in the order of what it keeps."""
    training = TrainingParams.of(params)
    found = (
        *_exact_ways(params, training),
        Way(Keeps.WEIGHTS, "precision", _mixed(training.precision)),
        Way(Keeps.PROBLEM, "precision", _all_in_bf16(training.precision)),
        Way(Keeps.PROBLEM, "optimizer", _in_8_bits(training.optimizer), _STATES),
        Way(Keeps.NOTHING, "optimizer", _nearly_stateless(training.optimizer), _STATES),
        Way(Keeps.NOTHING, length.name if length else "", _shorter(params, length)),
    )
    possible = (
        way._replace(values=tuple(value for value in way.values if _goes(params, way.name, value)))
        for way in found
    )
    return tuple(way for way in possible if way.values)


def _exact_ways(params: Params, training: TrainingParams) -> Iterator[Way]:
    """What leaves the result of a step as it was, what costs next to no time first."""
    yield Way(Keeps.RESULT, "micro_batch_size", accumulated_sizes(params))
    at_once = () if training.step_in_backward else (True,)
    yield Way(Keeps.RESULT, "step_in_backward", at_once, _GRADIENTS)
    whole = params.get("loss_chunks") == 1  # of an objective that has this dimension
    yield Way(Keeps.RESULT, "loss_chunks", (_LOSS_CHUNKS,) if whole else (), _LOGITS)
    more: dict[object, tuple[ParamValue, ...]] = {True: (), False: ("every-2", True)}
    checkpointed = more.get(training.activation_checkpointing, (True,))
    yield Way(Keeps.RESULT, "activation_checkpointing", checkpointed, _ACTIVATIONS)


def _goes(params: Params, name: str, value: ParamValue) -> bool:
    """Whether a step can be taken with the change."""
    try:
        TrainingParams.of({**params, name: value})
    except ValueError:
        return False
    return True


def _mixed(precision: Precision) -> tuple[str, ...]:
    wide = precision in (Precision.FP32, Precision.TF32)
    return (Precision.BF16_MIXED.value,) if wide else ()


def _all_in_bf16(precision: Precision) -> tuple[str, ...]:
    return () if precision is Precision.BF16 else (Precision.BF16.value,)


def _in_8_bits(optimizer: Optimizer) -> tuple[str, ...]:
    usable = optimizer is Optimizer.ADAMW and has_torchao()
    return (Optimizer.ADAMW_8BIT.value,) if usable else ()


def _nearly_stateless(optimizer: Optimizer) -> tuple[str, ...]:
    """Adafactor keeps a row and a column for each matrix, less than the momentum of SGD."""
    small = optimizer in (Optimizer.SGD, Optimizer.ADAFACTOR)
    return () if small else (Optimizer.ADAFACTOR.value,)


def _shorter(params: Params, length: Length | None) -> tuple[int, ...]:
    """The shorter lengths that are searched, where these are few.

    Else three quarters, a half and a quarter of the length: of those that are searched, or of all.
    """
    whole = params.get(length.name) if length else None
    if length is None or not isinstance(whole, int):
        return ()
    known = [value for value in length.searched if isinstance(value, int) and value < whole]
    if 0 < len(known) <= _MOST_LENGTHS:
        return tuple(sorted(known, reverse=True))
    parts = (whole * quarters // 4 for quarters in (3, 2, 1) if whole * quarters % 4 == 0)
    return tuple(part for part in parts if not known or part in known)


def changed(params: Params) -> Iterator[Params]:
    """The configurations that `mends` may ask for, to be announced before they are predicted.

    Left out: other lengths, for which a program of all that is searched might not hold.
    """
    for way in ways(params, None):
        for value in way.values:
            yield {**params, way.name: value}
