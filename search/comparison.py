"""Devices side by side for one search space: on which it fits, how fast, and at what price.

All are compared at one configuration: the heaviest of the space that fits on any of them, in
micro-batches where need be, as that keeps the result. Else a small device would look fast for what
little it can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from search.memory.feasibility import Fits, Predict, accumulated_sizes, judge_if_possible
from search.memory.speed import Candidate, Ranked, Speed, cheapest_that_fits
from search.plan import Plan, PlannedPoint, speed_to_json
from search.results import Params, ParamValue
from search.training_params import TrainingParams, micro_batch_size

Point = Mapping[str, ParamValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A device to compare: what was planned for it, and what else can be asked of it.

    `price_per_hour` is the user's, in any currency; None where none was given. `num_measured`
    trials correct its speeds.
    """

    name: str
    plan: Plan
    predict: Predict
    speed: Callable[[Params], Speed | None]
    price_per_hour: float | None = None
    num_measured: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One device of a comparison.

    `largest` is the configuration all are compared at, with the largest micro-batch that fits here;
    None where none does. `speed` and `cost` are estimates of it.
    """

    name: str
    budget_bytes: int
    share_that_fits: float
    largest: Fits | None
    speed: Speed | None
    price_per_hour: float | None
    num_measured: int = 0
    cost: Ranked | None = None

    @property
    def batch_size(self) -> int | None:
        """Samples of one optimizer step; None where it does not fit."""
        return TrainingParams.of(self.largest.params).batch_size if self.largest else None

    @property
    def micro_batch_size(self) -> int | None:
        """Samples at a time; None where it does not fit."""
        return micro_batch_size(self.largest.params) if self.largest else None

    @property
    def rescued(self) -> str:
        """What the sweep would change so that it fits, in words; empty where nothing."""
        return self.largest.rescued if self.largest else ""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        predicted = self.largest.predicted if self.largest else None
        return {
            "device": self.name,
            "budget_bytes": self.budget_bytes,
            "share_that_fits": self.share_that_fits,
            "fits": self.largest is not None,
            "batch_size": self.batch_size,
            "micro_batch_size": self.micro_batch_size,
            "predicted_bytes": predicted and predicted.expected_bytes,
            "high_bytes": predicted and predicted.high_bytes,
            "rescued": self.rescued,
            "estimated_tokens_per_second": self.speed and speed_to_json(self.speed),
            "num_measured_trials": self.num_measured,
            "price_per_hour": self.price_per_hour,
            "estimated_cost_per_million_tokens": self.cost and _cost_to_json(self.cost),
        }


def _cost_to_json(cost: Ranked) -> dict[str, float]:
    return {"low": cost.low_cost, "expected": cost.expected_cost, "high": cost.high_cost}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Devices in order: by estimated cost where they fit and have a price, then by memory.

    `reference` is the point of the space they are compared at; None where nothing fits anywhere.
    """

    reference: Point | None
    rows: tuple[Compared, ...]

    @property
    def smallest(self) -> str | None:
        """The device with the least memory on which the reference fits."""
        fitting = (row for row in self.rows if row.largest)
        found = min(fitting, key=lambda row: row.budget_bytes, default=None)
        return found.name if found else None

    @property
    def cheapest(self) -> str | None:
        """The device with the least estimated cost; None without prices."""
        first = self.rows[0]
        return first.name if first.cost else None

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "compared_at": None if self.reference is None else dict(self.reference),
            "smallest_that_fits": self.smallest,
            "cheapest_that_fits": self.cheapest,
            "devices": [row.to_json() for row in self.rows],
        }


def compare(entrants: Sequence[Entrant]) -> Comparison:
    """Devices compared at the heaviest configuration that fits on any of them."""
    reference, found = None, dict.fromkeys((entrant.name for entrant in entrants), None)
    for point in _candidates(entrants):
        reference, found = point, {each.name: _largest(each, point) for each in entrants}
        if any(found.values()):
            break
    else:
        reference = None
    rows = [_compared(entrant, found[entrant.name]) for entrant in entrants]
    return Comparison(reference=reference, rows=_ranked(rows))


def _candidates(entrants: Sequence[Entrant]) -> Iterable[Point]:
    """The heaviest structure of the space, then the heaviest that fits somewhere as it is."""
    sizes: list[tuple[int, bool, Point]] = [
        (planned.verdict.predicted.expected_bytes, planned.fits, planned.point)
        for entrant in entrants
        for planned in entrant.plan.points
    ]
    heaviest = max(sizes, key=lambda each: each[0], default=None)
    fitting = max((each for each in sizes if each[1]), key=lambda each: each[0], default=None)
    return [each[2] for each in (heaviest, fitting) if each is not None]


def _largest(entrant: Entrant, point: Point) -> Fits | None:
    """What the sweep would train at a point, or the same batch in the largest parts that fit."""
    planned = next((each for each in entrant.plan.points if each.point == point), None)
    if planned is None:
        return None
    if isinstance(planned.verdict, Fits):
        return planned.verdict
    return _accumulated(entrant, planned)


def _accumulated(entrant: Entrant, planned: PlannedPoint) -> Fits | None:
    params = planned.verdict.params
    for size in accumulated_sizes(params):
        smaller = {**params, "micro_batch_size": size}
        verdict = judge_if_possible(smaller, entrant.predict, entrant.plan.budget_bytes)
        if isinstance(verdict, Fits):
            return verdict
    return None


def _compared(entrant: Entrant, largest: Fits | None) -> Compared:
    return Compared(
        name=entrant.name,
        budget_bytes=entrant.plan.budget_bytes,
        share_that_fits=entrant.plan.share_that_fits,
        largest=largest,
        speed=entrant.speed(largest.params) if largest else None,
        price_per_hour=entrant.price_per_hour,
        num_measured=entrant.num_measured,
    )


def _ranked(rows: Iterable[Compared]) -> tuple[Compared, ...]:
    """By cost where it is known, then what fits before what does not, by memory."""
    by_memory = sorted(rows, key=lambda row: (row.largest is None, row.budget_bytes))
    known = {row.name: row for row in by_memory}
    costs = cheapest_that_fits(
        Candidate(name=row.name, price_per_hour=row.price_per_hour, speed=row.speed)
        for row in by_memory
        if row.price_per_hour is not None
    )
    ranked = [replace(known[cost.name], cost=cost) for cost in costs]
    names = {row.name for row in ranked}
    return (*ranked, *(row for row in by_memory if row.name not in names))
