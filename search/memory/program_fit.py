"""From a few traces of a structure to its event program, or the reason why there is none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from search.errors import SearchError
from search.memory.events import Appearances, Event
from search.memory.polynomials import Coefficients, sparsest
from search.memory.program import Box, EventProgram, Point, Ruled, Step, Uncertain
from search.memory.target import Unsure
from search.memory.trace import Trace
from search.memory.work_program import WorkProgram, fit_work
from search.objective import Split

if TYPE_CHECKING:
    from search.objective import Objective
    from search.results import Params

_LEAST_TRACES, _MAX_TERMS = 3, 3
_CORNERS_AND_INSIDE = (
    (0.0, 0.0, 0.0),
    (1.0, 1.0, 1.0),
    (1.0, 0.0, 0.0),
    (0.0, 1.0, 1.0),
    (0.4, 0.6, 0.3),
)
"""Where in the box to trace, as shares of its sizes. If the events hang on a condition that grows
or falls with each size, such as a longest length for a kernel, two opposite corners differ. The
point inside lies on odd multiples of the step, as paddings and quadratic terms show there."""
_MORE_PLACES = ((0.7, 0.3, 0.6), (0.2, 0.8, 0.8))
"""For sizes that the others leave open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProgram:
    """Every point of this structure must be traced; `reason` says why.

    `is_divisible` where events differ between points, or sizes follow no one formula: smaller
    boxes may each have a program.
    """

    reason: str
    is_divisible: bool = False


def fit_program(trace_at: Callable[[Point], Trace], box: Box) -> EventProgram | NoProgram:
    """The program that gives every trace made for it to the byte, or why there is none.

    Every size is confirmed by at least two traces more than it has terms. A condition on the sizes
    that holds only in the midst of the box, at no corner, stays unseen.

    Args:
        trace_at: the trace of one point of the structure.
        box: the points it is for, see `regimes`.
    """
    sure, more = _points(box, _CORNERS_AND_INSIDE), _points(box, _MORE_PLACES)
    if len(sure) < _LEAST_TRACES:
        return NoProgram(reason=f"{len(sure)} points are too few to confirm anything")
    traces: dict[Point, Trace] = {}
    for point in dict.fromkeys(sure + more):
        reason = _add(traces, point, trace_at)
        if reason:
            return NoProgram(reason=reason, is_divisible=True)
        if len(traces) >= len(sure):
            found = _program(traces, box)
            if isinstance(found, EventProgram) and (found.work or not traces[point].work):
                break
    return found if isinstance(found, EventProgram) else replace(found, is_divisible=True)


def num_sure_traces(box: Box) -> int:
    """What a program costs where its sizes have one or two terms: five, three without a length."""
    return max(_LEAST_TRACES, len(_points(box, _CORNERS_AND_INSIDE)))


def _points(box: Box, places: Sequence[tuple[float, ...]]) -> list[Point]:
    """Each point once, in order."""
    points = (
        Point(*(_value(axis, share) for axis, share in zip(box.axes, shares, strict=True)))
        for shares in places
    )
    return list(dict.fromkeys(points))


def _add(traces: dict[Point, Trace], point: Point, trace_at: Callable[[Point], Trace]) -> str:
    """Traces one more point; the reason if it does not go with the others, or not at all."""
    try:
        traces[point] = trace_at(point)
    except Exception as error:  # noqa: BLE001 - a model may refuse a size in any way
        return f"{point} cannot be traced: {error}"
    return _difference(traces)


def _value(axis: range, share: float) -> int:
    index = round(share * (len(axis) - 1))
    if 0 < index < len(axis) - 1 and (axis[index] // axis.step) % 2 == 0:
        index -= 1 if index > 1 else -1
    return axis[min(index, len(axis) - 1)]


def _difference(traces: dict[Point, Trace]) -> str:
    """Where the last trace does something else than the first; empty where it doesn't."""
    (first, reference), (last, found) = (list(traces.items())[index] for index in (0, -1))
    for index, (one, other) in enumerate(
        itertools.zip_longest(_sequence(reference), _sequence(found))
    ):
        if one != other:
            return f"event {index} differs between {first} and {last}: {one} and {other}"
    return ""


def _sequence(traced: Trace) -> Iterator[tuple[object, ...]]:
    appears = Appearances()
    for event in traced.all_events:
        yield (
            event.phase.value,
            event.storage,
            appears(event),
            event.operator,
            event.part.value,
            event.formula and (event.formula.rule, len(event.formula.numbers)),
        )
    yield tuple(call.adds_up for call in traced.uncertain)


def _program(traces: dict[Point, Trace], box: Box) -> EventProgram | NoProgram:
    fit = _Fit(list(traces), box)
    events = next(iter(traces.values())).all_events
    same = list(zip(*(traced.all_events for traced in traces.values()), strict=True))
    try:
        keys = [fit.size(each) for each in same]
        uncertain = [fit.uncertain(each) for each in _calls(traces.values())]
    except _NoPolynomialError as error:
        return NoProgram(reason=str(error))
    ruled = {size: None for size in keys if isinstance(size, Ruled)}
    plain = {size: None for size in keys if not isinstance(size, Ruled)}
    number = {size: index for index, size in enumerate([*plain, *ruled])}
    appears = Appearances()
    steps = (
        Step(
            event.phase,
            event.storage,
            appears(event),
            number[size],
            event.operator,
            event.part,
        )
        for event, size in zip(events, keys, strict=True)
    )
    return EventProgram(
        box=box,
        sizes=tuple(plain),
        ruled=tuple(ruled),
        uncertain=tuple(uncertain),
        steps=tuple(steps),
        work=_work(traces, box),
    )


def _calls(traces: Iterable[Trace]) -> Iterator[tuple[Unsure, ...]]:
    """Those that keep their needs to themselves, each at all points."""
    return zip(*(traced.uncertain for traced in traces), strict=True)


class _NoPolynomialError(Exception):
    """Raised where some numbers follow no polynomial, or several."""


class _Fit:
    """The polynomials of one program; each is looked for once."""

    def __init__(self, points: list[Point], box: Box) -> None:
        self._points = points
        self._axes = [len(axis) for axis in box.axes]
        self._found: dict[tuple[int, ...], Coefficients] = {}

    def size(self, events: Sequence[Event]) -> Coefficients | Ruled:
        """That of one event, given at each point.

        Raises:
            _NoPolynomialError: when there is none.
        """
        formulas = [event.formula for event in events]
        if formulas[0] is None:
            return self._polynomial(tuple(abs(event.num_bytes) for event in events))
        columns = zip(*(formula.numbers for formula in formulas if formula), strict=True)
        return Ruled(formulas[0].rule, tuple(map(self._polynomial, columns)))

    def uncertain(self, calls: Sequence[Unsure]) -> Uncertain:
        """That of one call, given at each point.

        Raises:
            _NoPolynomialError: when there is none.
        """
        below, above, _ = zip(*calls, strict=True)
        return Uncertain(self._polynomial(below), self._polynomial(above), calls[0].adds_up)

    def _polynomial(self, values: tuple[int, ...]) -> Coefficients:
        if values not in self._found:
            found = sparsest(
                np.array(self._points),
                values,
                axes=self._axes,
                max_terms=min(_MAX_TERMS, len(self._points) - 2),
            )
            if len(found) != 1:
                many = "more than one polynomial" if found else "no polynomial"
                msg = f"{many} gives {values} at {tuple(self._points)}"
                raise _NoPolynomialError(msg)
            self._found[values] = found[0]
        return self._found[values]


def _work(traces: dict[Point, Trace], box: Box) -> WorkProgram | None:
    works = [traced.work for traced in traces.values() if traced.work]
    return fit_work(list(traces), works, axes=[len(axis) for axis in box.axes]) if works else None


def regimes(points: Sequence[Point]) -> tuple[Box, ...]:
    """The boxes round all points, those with a size of 1 apart from the others.

    At size 1 a transposed tensor is contiguous and a copy is left out, so that events differ.
    """
    kinds: dict[tuple[bool, ...], list[Point]] = {}
    for point in points:
        kind = (point.micro_batch_size == 1, point.length == 1, point.num_waiting == 0)
        kinds.setdefault(kind, []).append(point)
    return tuple(_box_round(members) for members in kinds.values())


def halves(points: Sequence[Point]) -> tuple[Box, ...]:
    """The boxes of the shorter and the longer points, or of the smaller where lengths agree.

    Lengths come first: they choose kernels, and sizes of pictures follow no short formula in them,
    while any size follows one in the batch. None where all points are one.
    """
    for axis in ("length", "micro_batch_size"):
        values = sorted({getattr(point, axis) for point in points})
        if len(values) > 1:
            middle = values[len(values) // 2]
            small = [point for point in points if getattr(point, axis) < middle]
            large = [point for point in points if getattr(point, axis) >= middle]
            return _box_round(small), _box_round(large)
    return ()


def _box_round(points: Sequence[Point]) -> Box:
    axes = [_axis(values) for values in zip(*points, strict=True)]
    return Box(**dict(zip(Box.__dataclass_fields__, axes, strict=True)))


def _axis(values: Sequence[int]) -> range:
    step = int(np.gcd.reduce(values)) or 1
    return range(min(values), max(values) + 1, step)


def length_dimension(objective: Objective, params: Params) -> str | None:
    """The first whole-numbered dimension of an objective that changes the shape of its batches."""
    for dimension in fields(objective.parameters):
        value = params.get(dimension.name, dimension.default)
        if isinstance(value, int) and not isinstance(value, bool):
            doubled = {**params, dimension.name: 2 * value}
            if _shapes(objective, doubled) not in ((), _shapes(objective, params)):
                return dimension.name
    return None


def _shapes(objective: Objective, params: Params) -> tuple[tuple[int, ...], ...]:
    """The shapes of a batch; none where the objective refuses the dimensions."""
    try:
        with torch.device("meta"):
            batch = objective.batch({**params, "micro_batch_size": "equal"}, Split.TRAIN)
    except (ValueError, SearchError):
        return ()
    return tuple(tuple(tensor.shape) for tensor in batch.values())
