"""For a configuration that does not fit: the single changes that would make it fit.

Left out: two changes at once, a smaller model, and the optimizer on the host, whose time nobody
can tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.memory.events import Part
from search.memory.feasibility import (
    DoesNotFit,
    Fits,
    Predict,
    judge_if_possible,
)
from search.memory.machine import FRAGMENTATION
from search.memory.ways import Keeps, Length, Way, ways
from search.results import Params, ParamValue, PredictedMemory
from search.units import shown

if TYPE_CHECKING:
    from search.memory.prediction import Predictor
    from search.memory.speed import Rates

SecondsPerToken = Callable[[Params], float]

_NEXT_TO_NOTHING = 1.05
"""A change that costs at most this is offered before others that keep as much are looked at: an
estimate does not tell finer differences."""
_MAY_GO_WITH_ANY = frozenset({str(Part.TEMPORARIES), str(Part.WORKSPACE), FRAGMENTATION})
"""Parts of a peak that a change to any other may lessen too."""


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
        refused=refused.predicted,
    )
    return next(found, None)


def mends(
    params: Params,
    predict: Predict,
    budget_bytes: int,
    *,
    seconds_per_token: SecondsPerToken,
    length: Length | None,
    refused: PredictedMemory | None = None,
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
        refused: what the configuration itself needs: what cannot save enough is then not asked for.
    """

    def slow_down(changed: Params) -> float:
        return seconds_per_token(changed) / seconds_per_token(params)

    for _, group in itertools.groupby(ways(params, length), key=lambda way: way.keeps):
        found: list[Mend] = []
        for way in group:
            if refused and not _can_be_enough(way, refused, budget_bytes):
                continue
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


def _can_be_enough(way: Way, refused: PredictedMemory, budget_bytes: int) -> bool:
    """Whether a way that lessens some parts of the peak would fit if they were nothing.

    What else there was at that moment is still there.
    """
    if not way.lessens or not refused.parts:
        return True
    going = way.lessens | _MAY_GO_WITH_ANY
    saved_bytes = sum(size for part, size in refused.parts.items() if part in going)
    left = 1 - saved_bytes / refused.expected_bytes
    return refused.high_bytes * left <= budget_bytes


def _first_that_fits(way: Way, params: Params, predict: Predict, budget_bytes: int) -> Fits | None:
    for value in way.values:
        verdict = judge_if_possible({**params, way.name: value}, predict, budget_bytes)
        if isinstance(verdict, Fits):
            return verdict
    return None
