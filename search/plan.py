"""What of a search space fits, before anything is trained."""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from search.errors import InputError, MachineError
from search.memory.feasibility import DoesNotFit, Verdict
from search.memory.mend import Mend
from search.memory.speed import Speed
from search.results import Params, ParamValue
from search.sweep.space import Dimension, FloatRange, Space
from search.training_params import MEMORY_NEUTRAL, MEMORY_SWITCHES

MAX_POINTS = 512
MAX_AHEAD = 128
"""Structures of a space that is predicted before its sweep starts: at most a minute or two."""
_VALUES_OF_A_RANGE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """One structure of the space and what is predicted for it.

    `mend` is the cheapest single change with which it fits, if there is one and it was asked for.
    `speed` is an estimate; None where there is none, and of what does not fit.
    """

    point: Mapping[str, ParamValue]
    verdict: Verdict
    mend: Mend | None = None
    speed: Speed | None = None

    @property
    def fits(self) -> bool:
        """Whether it would be trained."""
        return not isinstance(self.verdict, DoesNotFit)

    @property
    def rescued(self) -> str:
        """What was changed so that it fits; empty where nothing was."""
        return "" if isinstance(self.verdict, DoesNotFit) else self.verdict.rescued

    @property
    def excess_bytes(self) -> int:
        """What it needs beyond the budget; 0 when it fits."""
        return self.verdict.excess_bytes if isinstance(self.verdict, DoesNotFit) else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        predicted = self.verdict.predicted
        return {
            "point": dict(self.point),
            "fits": self.fits,
            "predicted_bytes": predicted.expected_bytes,
            "high_bytes": predicted.high_bytes,
            "phase": predicted.phase,
            "parts": dict(predicted.parts),
            "micro_batch_size": self.verdict.params["micro_batch_size"],
            "rescued": self.rescued,
            "mend": self.mend and _mend_to_json(self.mend),
            "estimated_tokens_per_second": self.speed and speed_to_json(self.speed),
        }


def speed_to_json(speed: Speed) -> dict[str, float]:
    """The range of an estimate, plain values for `--json`."""
    return {
        "low": speed.low_tokens_per_second,
        "expected": speed.expected_tokens_per_second,
        "high": speed.high_tokens_per_second,
    }


def _mend_to_json(mend: Mend) -> dict[str, Any]:
    return {
        "change": {mend.name: mend.value},
        "predicted_bytes": mend.predicted.expected_bytes,
        "high_bytes": mend.predicted.high_bytes,
        "estimated_slow_down": mend.slow_down,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpredicted:
    """One structure of the space whose memory cannot be predicted, and why.

    It would be trained; one that `is_refused` only where the gate is off.
    """

    point: Mapping[str, ParamValue]
    reason: str
    is_refused: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {"point": dict(self.point), "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many structures of a space fit, and of how many nobody can say without judging them."""

    num_points: int
    num_fitting: int
    num_undecided: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The judged structures; `complete` when they, and the unpredicted, are all there are."""

    points: tuple[PlannedPoint, ...]
    unpredicted: tuple[Unpredicted, ...] = ()
    point_by_point: tuple[str, ...] = ()
    """Why some structures took a trace for each of their points."""
    budget_bytes: int
    complete: bool
    counts: Counts | None = None
    """Of the whole space, where `points` are those at the border of what fits alone."""

    @property
    def share_that_fits(self) -> float:
        """Fraction of the structures that fit for sure, 0 to 1; 0 when none could be judged."""
        return self.counted.num_fitting / max(1, self.counted.num_points)

    @property
    def counted(self) -> Counts:
        """How many fit: of the whole space, or of `points` where these are all that was judged."""
        num_fitting = sum(point.fits for point in self.points)
        return self.counts or Counts(num_points=len(self.points), num_fitting=num_fitting)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "budget_bytes": self.budget_bytes,
            "share_that_fits": self.share_that_fits,
            "complete": self.complete,
            "counts": self.counts and asdict(self.counts),
            "points": [point.to_json() for point in self.points],
            "unpredicted": [point.to_json() for point in self.unpredicted],
            "point_by_point": list(self.point_by_point),
        }


def plan(
    space: Space,
    *,
    params_of: Callable[[Mapping[str, ParamValue]], Params],
    fits: Callable[[Params], Verdict],
    budget_bytes: int,
    on_point: Callable[[int, int], None],
    mend: Callable[[DoesNotFit], Mend | None] = lambda _: None,
    speed: Callable[[Params], Speed | None] = lambda _: None,
) -> Plan:
    """Every structure of a space judged; a spread of 512 of them where there are more.

    A structure is a point without the dimensions that change no tensor's size. A continuous range
    stands for 5 values from its low to its high end. `on_point` is told how many are done, of all.
    `mend` finds the change with which a structure fits, `speed` estimates that of one that does;
    by default neither is looked for.
    """
    structures, complete = structure_points(space)
    judge = Judge(params_of=params_of, fits=fits)
    points: list[PlannedPoint] = []
    for num_done, structure in enumerate(structures, start=1):
        if found := judge(structure):
            points.append(in_full(found, mend=mend, speed=speed))
        on_point(num_done, len(structures))
    return Plan(
        points=tuple(points),
        unpredicted=tuple(judge.unpredicted),
        budget_bytes=budget_bytes,
        complete=complete,
    )


class Judge:
    """Judges structures; those that cannot be judged gather in `unpredicted`."""

    def __init__(
        self,
        *,
        params_of: Callable[[Mapping[str, ParamValue]], Params],
        fits: Callable[[Params], Verdict],
    ) -> None:
        """Has judged nothing yet."""
        self._params_of = params_of
        self._fits = fits
        self.unpredicted: list[Unpredicted] = []

    def __call__(self, structure: Mapping[str, ParamValue]) -> PlannedPoint | None:
        """The verdict on a structure; None where there is none."""
        try:
            return PlannedPoint(point=structure, verdict=self._fits(self._params_of(structure)))
        except MachineError:
            raise
        except InputError as error:
            refused = Unpredicted(point=structure, reason=str(error), is_refused=True)
            self.unpredicted.append(refused)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - to judge runs the user's own model
            self.unpredicted.append(Unpredicted(point=structure, reason=_in_a_line(error)))
        return None


def in_full(
    planned: PlannedPoint,
    *,
    mend: Callable[[DoesNotFit], Mend | None],
    speed: Callable[[Params], Speed | None],
) -> PlannedPoint:
    """A judged structure with its estimated speed, or with what would make it fit."""
    if isinstance(planned.verdict, DoesNotFit):
        return replace(planned, mend=mend(planned.verdict))
    return replace(planned, speed=speed(planned.verdict.params))


def _in_a_line(error: BaseException) -> str:
    """What an error says, first line alone, and where it was raised."""
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    *_, last = traceback.walk_tb(error.__traceback__)
    return f"{said} ({Path(last[0].f_code.co_filename).name}, line {last[1]})"


def can_be_predicted_ahead(space: Space) -> bool:
    """Whether a space has few enough structures to predict them all before a sweep starts."""
    structures, complete = structure_points(space)
    return complete and len(structures) <= MAX_AHEAD


def structure_points(space: Space) -> tuple[list[dict[str, ParamValue]], bool]:
    """The structures to judge, and whether they are all there are."""
    relevant = {name: dim for name, dim in space.items() if name not in MEMORY_NEUTRAL}
    exact = all(
        name in MEMORY_SWITCHES or dim.values() is not None for name, dim in relevant.items()
    )
    axes = [_values(name, dim) for name, dim in relevant.items()]
    count = math.prod(map(len, axes))
    if count <= MAX_POINTS:
        chosen: Iterator[int] | list[int] = iter(range(count))
    else:
        chosen = sorted(random.Random(0).sample(range(count), MAX_POINTS))  # noqa: S311 - a spread, no secret
    points = [dict(zip(relevant, _at(axes, index), strict=True)) for index in chosen]
    return points, exact and count <= MAX_POINTS


def _values(name: str, dimension: Dimension) -> tuple[ParamValue, ...]:
    values = dimension.values()
    if values is None and isinstance(dimension, FloatRange):
        values = _spread(dimension)
    if name in MEMORY_SWITCHES and values is not None:  # memory asks only whether they are 0
        zero, other = (next((v for v in values if bool(v) is on), None) for on in (False, True))
        return tuple(value for value in (zero, other) if value is not None)
    return values or ()


def _spread(dimension: FloatRange) -> tuple[ParamValue, ...]:
    width = (dimension.high - dimension.low) / (_VALUES_OF_A_RANGE - 1)
    return tuple(dimension.low + index * width for index in range(_VALUES_OF_A_RANGE))


def _at(axes: list[tuple[ParamValue, ...]], index: int) -> list[ParamValue]:
    values = []
    for axis in reversed(axes):
        index, position = divmod(index, len(axis))
        values.append(axis[position])
    return values[::-1]
