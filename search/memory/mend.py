"""For a configuration that does not fit: the single changes that would make it fit.

Left out: two changes at once, and a smaller model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from search.memory.feasibility import Fits, Predict, accumulated_sizes, judge_if_possible
from search.results import Params, ParamValue, PredictedMemory
from search.training import Optimizer, Precision, TrainingParams
from search.units import shown

SecondsPerToken = Callable[[Params], float]


class Keeps(IntEnum):
    """What a change leaves as it was, the most first."""

    RESULT = 0
    """The step updates the weights as before: accumulation, checkpointing. (Layers that look at a
    whole micro-batch, such as batch norm, do see a smaller one.)"""
    WEIGHTS = 1
    """Products are rounded, weights and updates are not: `bf16-mixed`."""
    PROBLEM = 2
    """All is rounded, but the same is learned in the same way: `bf16-true`."""
    NOTHING = 3
    """Another update rule or shorter samples: hyperparameters must be found anew."""


class Way(NamedTuple):
    """One dimension and the values to try in turn, the least change first."""

    keeps: Keeps
    name: str
    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """A single change with which a configuration fits.

    `params` is the configuration with `name` set to `value`. `slow_down` is the estimated time of
    a token after the change over that before: 1.3 takes 30 % longer, below 1 is faster.
    """

    name: str
    value: ParamValue
    keeps: Keeps
    params: Params
    predicted: PredictedMemory
    slow_down: float

    def __str__(self) -> str:
        """`micro_batch_size 8`."""
        return f"{self.name} {shown(self.value)}"


def mends(
    params: Params,
    predict: Predict,
    budget_bytes: int,
    *,
    seconds_per_token: SecondsPerToken,
    length: str | None,
) -> Iterator[Mend]:
    """Single changes that fit, the cheapest first: ask for one, and the others cost nothing.

    An engineer first wants the same training in less memory, at whatever it costs in time; then
    the same training in fewer bits; and to learn something else only where that is all there is.
    So changes go by what they keep, and of those that keep as much by what they cost in time. Each
    dimension is offered once, with the least change that fits: the largest micro-batch, the
    longest sample.

    Args:
        params: a configuration that does not fit, `micro_batch_size` resolved.
        predict: the memory of a configuration. A change it cannot predict is not offered.
        budget_bytes: what one trial may use.
        seconds_per_token: estimated, in any unit that is the same for all.
        length: the dimension that is the length of a sample, if there is one.
    """
    for _, group in itertools.groupby(ways(params, length), key=lambda way: way.keeps):
        tried = (_first_that_fits(way, params, predict, budget_bytes) for way in group)
        found = [
            Mend(
                name=way.name,
                value=verdict.params[way.name],
                keeps=way.keeps,
                params=verdict.params,
                predicted=verdict.predicted,
                slow_down=seconds_per_token(verdict.params) / seconds_per_token(params),
            )
            for way, verdict in filter(None, tried)
        ]
        yield from sorted(found, key=lambda mend: mend.slow_down)


def _first_that_fits(
    way: Way, params: Params, predict: Predict, budget_bytes: int
) -> tuple[Way, Fits] | None:
    for value in way.values:
        verdict = judge_if_possible({**params, way.name: value}, predict, budget_bytes)
        if isinstance(verdict, Fits):
            return way, verdict
    return None


def ways(params: Params, length: str | None) -> tuple[Way, ...]:
    """All that may be changed in a configuration, in the order of what it keeps."""
    training = TrainingParams.of(params)
    return tuple(
        way
        for way in (
            Way(Keeps.RESULT, "micro_batch_size", accumulated_sizes(params)),
            Way(
                Keeps.RESULT,
                "activation_checkpointing",
                () if training.activation_checkpointing else (True,),
            ),
            Way(Keeps.WEIGHTS, "precision", _mixed(training.precision)),
            Way(Keeps.PROBLEM, "precision", _all_in_bf16(training.precision)),
            Way(Keeps.NOTHING, "optimizer", _stateless(training.optimizer)),
            Way(Keeps.NOTHING, length or "", _shorter(params, length)),
        )
        if way.values
    )


def _mixed(precision: Precision) -> tuple[str, ...]:
    wide = precision in (Precision.FP32, Precision.TF32)
    return (Precision.BF16_MIXED.value,) if wide else ()


def _all_in_bf16(precision: Precision) -> tuple[str, ...]:
    return () if precision is Precision.BF16 else (Precision.BF16.value,)


def _stateless(optimizer: Optimizer) -> tuple[str, ...]:
    return () if optimizer is Optimizer.SGD else (Optimizer.SGD.value,)


def _shorter(params: Params, length: str | None) -> tuple[int, ...]:
    """Three quarters and a half of the length, and so on to an eighth, where these are whole."""
    whole = params.get(length) if length else None
    if not isinstance(whole, int):
        return ()
    parts = (whole * quarters / 16 for quarters in (12, 8, 6, 4, 3, 2))
    return tuple(int(part) for part in parts if part >= 1 and part.is_integer())


def changed(params: Params, length: str | None) -> Iterator[Params]:
    """Every configuration that `mends` may ask for, to be announced before it is predicted."""
    for way in ways(params, length):
        for value in way.values:
            yield {**params, way.name: value}
