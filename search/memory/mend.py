"""For a configuration that does not fit: the single changes that would make it fit.

Left out: two changes at once, and a smaller model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from search.memory.feasibility import (
    DoesNotFit,
    Fits,
    Predict,
    accumulated_sizes,
    judge_if_possible,
)
from search.optimizers import Optimizer
from search.results import Params, ParamValue, PredictedMemory
from search.training import Precision, TrainingParams
from search.units import shown

if TYPE_CHECKING:
    from search.memory.prediction import Predictor
    from search.memory.speed import Rates

SecondsPerToken = Callable[[Params], float]

_NEXT_TO_NOTHING = 1.05
"""A change that costs at most this is offered before others that keep as much are looked at: an
estimate does not tell finer differences."""
_MOST_LENGTHS = 8
"""More values than these are a range, of which a few are tried."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """The dimension that is the length of a sample, and the values of it that are searched."""

    name: str
    searched: Sequence[ParamValue] = ()


def cheapest_mend(
    refused: DoesNotFit,
    predict: Predictor,
    rates: Rates,
    *,
    searched: Mapping[str, Sequence[ParamValue]],
) -> Mend | None:
    """The first of `mends` for a refused configuration; None where no single change is enough.

    Args:
        refused: the verdict.
        predict: what it was predicted with.
        rates: of the device, for the slow-down.
        searched: the values of each searched dimension.
    """

    def seconds_per_token(params: Params) -> float:
        return 1 / predict.speed(params, rates).expected_tokens_per_second

    name = predict.length
    found = mends(
        refused.params,
        predict,
        refused.budget_bytes,
        seconds_per_token=seconds_per_token,
        length=Length(name=name, searched=searched.get(name, ())) if name else None,
    )
    return next(found, None)


def mends(
    params: Params,
    predict: Predict,
    budget_bytes: int,
    *,
    seconds_per_token: SecondsPerToken,
    length: Length | None,
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
        length: that of a sample, if there is one.
    """

    def slow_down(changed: Params) -> float:
        return seconds_per_token(changed) / seconds_per_token(params)

    for _, group in itertools.groupby(ways(params, length), key=lambda way: way.keeps):
        found: list[Mend] = []
        for way in group:
            verdict = _first_that_fits(way, params, predict, budget_bytes)
            if verdict is not None:
                found.append(_mend(way, verdict, slow_down(verdict.params)))
                if found[-1].slow_down <= _NEXT_TO_NOTHING:
                    yield found.pop()
        yield from sorted(found, key=lambda mend: mend.slow_down)


def _mend(way: Way, verdict: Fits, slow_down: float) -> Mend:
    return Mend(
        name=way.name,
        value=verdict.params[way.name],
        keeps=way.keeps,
        params=verdict.params,
        predicted=verdict.predicted,
        slow_down=slow_down,
    )


def _first_that_fits(way: Way, params: Params, predict: Predict, budget_bytes: int) -> Fits | None:
    for value in way.values:
        verdict = judge_if_possible({**params, way.name: value}, predict, budget_bytes)
        if isinstance(verdict, Fits):
            return verdict
    return None


def ways(params: Params, length: Length | None) -> tuple[Way, ...]:
    """All that may be changed in a configuration, in the order of what it keeps."""
    training = TrainingParams.of(params)
    return tuple(
        way
        for way in (
            Way(Keeps.RESULT, "micro_batch_size", accumulated_sizes(params)),
            Way(
                Keeps.RESULT,
                "activation_checkpointing",
                () if training.activation_checkpointing is True else (True,),
            ),
            Way(Keeps.WEIGHTS, "precision", _mixed(training.precision)),
            Way(Keeps.PROBLEM, "precision", _all_in_bf16(training.precision)),
            Way(Keeps.NOTHING, "optimizer", _stateless(training.optimizer)),
            Way(Keeps.NOTHING, length.name if length else "", _shorter(params, length)),
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
