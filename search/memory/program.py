"""The memory of one structure for every micro-batch size and length, without another trace.

A structure is everything of a configuration but those sizes. Left out: how a program is obtained,
see `search.memory.program_fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from search.memory.formulas import Formula, is_known
from search.memory.polynomials import (
    EXPONENTS,
    Coefficients,
    Integers,
    maximal,
    monomials,
    undominated,
)
from search.memory.target import Unsure
from search.memory.trace import Event, Part, Phase, Trace, trace_of
from search.memory.work_program import WorkProgram

_NAMED: Mapping[str, Callable[[str], Any]] = {"phase": Phase, "operator": str, "part": Part}
"""What is written down once of each step's values, and how it is read."""
_CHUNK = 1 << 15
"""Points judged at a time: a few megabytes of intermediate results."""
_EXACT_BYTES = 2**53
"""Below this, float64 holds every whole number: sums by BLAS are exact."""


class Point(NamedTuple):
    """What a structure leaves open.

    `length` is 1 where the objective has none. `num_waiting` micro-batches of a step are not run
    by the tracer: their inputs alone are held.
    """

    micro_batch_size: int
    length: int = 1
    num_waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The points a program is for: each size from low to high in equal steps."""

    micro_batch_sizes: range
    lengths: range = range(1, 2)
    num_waiting: range = range(1)

    @property
    def axes(self) -> tuple[range, range, range]:
        """The values of each size, in the order of `Point`."""
        return self.micro_batch_sizes, self.lengths, self.num_waiting

    @property
    def low(self) -> Point:
        """The smallest point."""
        return Point(*(axis[0] for axis in self.axes))

    @property
    def high(self) -> Point:
        """The largest point."""
        return Point(*(axis[-1] for axis in self.axes))

    def covers(self, points: Integers) -> bool:
        """Whether all points, (num_points, 3), lie inside."""
        return bool(self.holds(points).all())

    def holds(self, points: Integers) -> npt.NDArray[np.bool_]:
        """Whether each point, (num_points, 3), lies inside, (num_points,)."""
        axes = zip(points.T, self.axes, strict=True)
        inside: npt.NDArray[np.bool_] = np.all([_on(column, axis) for column, axis in axes], axis=0)
        return inside

    def lies_in(self, other: Self) -> bool:
        """Whether all points of this box lie between the ends of another."""
        ends = zip(self.low, self.high, other.low, other.high, strict=True)
        return all(low >= least and high <= most for low, high, least, most in ends)


def _on(column: Integers, axis: range) -> npt.NDArray[np.bool_]:
    between = (column >= axis[0]) & (column <= axis[-1])
    inside: npt.NDArray[np.bool_] = between & ((column - axis[0]) % axis.step == 0)
    return inside


class Ruled(NamedTuple):
    """A size that a rule gives, see `search.memory.formulas`, from numbers that are polynomials."""

    rule: str
    numbers: tuple[Coefficients, ...]

    def at(self, point_monomials: Integers) -> Formula:
        """The formula where the terms have these values, (num_terms,)."""
        return Formula(self.rule, tuple((np.array(self.numbers) @ point_monomials).tolist()))


class Uncertain(NamedTuple):
    """How far a call may lie beside what is booked, as polynomials of bytes."""

    below: Coefficients
    above: Coefficients
    adds_up: bool

    def at(self, point_monomials: Integers) -> Unsure:
        """The same where the terms have these values, (num_terms,)."""
        below, above = (np.array(self[:2]) @ point_monomials).tolist()
        return Unsure(below, above, self.adds_up)


class Step(NamedTuple):
    """An event: so many bytes appear, or go if not `appears`.

    `size` is a place in `EventProgram.sizes`, or after its end in `EventProgram.ruled`.
    """

    phase: Phase
    storage: int
    appears: bool
    size: int
    operator: str
    part: Part


@dataclass(frozen=True, kw_only=True)
class EventProgram:
    """The events of a structure in order, each size a polynomial of the point, or ruled by such.

    Sizes are exact, to the byte, as far as the traces that made it tell: inside `box` alone.
    `work` is None where what a step computes and moves is no such polynomial.
    """

    box: Box
    sizes: tuple[Coefficients, ...]
    steps: tuple[Step, ...]
    ruled: tuple[Ruled, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    work: WorkProgram | None = None

    @cached_property
    def _peaks(self) -> Mapping[Phase, Integers]:
        """The sums that may be the largest of their phase."""
        sums = self._alive()
        phases = np.array([step.phase.value for step in self.steps])
        return {
            phase: undominated(sums[phases == phase.value], self.box.low, self.box.high)
            for phase in Phase
            if (phases == phase.value).any()
        }

    @cached_property
    def _peak(self) -> Integers:
        """The sums that may be the largest of all."""
        together = np.concatenate(list(self._peaks.values()))
        return undominated(together, self.box.low, self.box.high)

    @cached_property
    def _known(self) -> dict[int, list[int]]:
        """The ruled sizes where they were asked for, by the place of the point in the box."""
        return {}

    def _alive(self) -> Integers:
        """What is alive after each event, (num_events, num_terms + num_ruled).

        As polynomials, and how many blocks of each ruled size.
        """
        counts, num_sizes = self._counts(), len(self.sizes)
        polynomials = counts[:, :num_sizes] @ _matrix(self.sizes)
        return np.hstack([polynomials, counts[:, num_sizes:]])

    def _counts(self) -> Integers:
        """How many blocks of each size are alive after each event, (num_events, num_sizes)."""
        num_sizes = len(self.sizes) + len(self.ruled)
        changes = np.zeros((len(self.steps), num_sizes), dtype=np.int64)
        for row, step in zip(changes, self.steps, strict=True):
            row[step.size] = 1 if step.appears else -1
        return np.cumsum(changes, axis=0)

    def peak_bytes(self, points: Integers) -> Integers:
        """The most bytes alive at once at each point, (num_points,).

        Args:
            points: columns as in `Point`, (num_points, 3).

        Raises:
            ValueError: when a point lies outside the box.
        """
        return self._largest(self._peak, points)

    def peak_bytes_by_phase(self, points: Integers) -> dict[Phase, Integers]:
        """The same for each phase, 0 for one without events."""
        nothing = np.zeros(len(points), dtype=np.int64)
        return {
            phase: self._largest(self._peaks[phase], points) if phase in self._peaks else nothing
            for phase in Phase
        }

    @property
    def num_sums(self) -> int:
        """How many sums of sizes, of all events, may be the largest at some point."""
        return len(self._peak)

    def rounded_peak_bytes(self, points: Integers, *, unit_bytes: int) -> Integers:
        """The same where each block takes whole units, as an allocator gives them, (num_points,).

        What an allocator adds besides, such as a remainder it does not split off, is left out.
        """
        self._check(points)
        counts = np.unique(self._counts(), axis=0)
        counts = counts[maximal(counts)].astype(np.float64)
        sizes = _matrix(self.sizes)
        return _largest_of(
            counts
            @ -(np.vstack([sizes @ monomials(chunk), self._ruled_bytes(chunk)]) // -unit_bytes)
            * unit_bytes
            for chunk in _chunks(points)
        )

    def _check(self, points: Integers) -> None:
        if not self.box.covers(points):
            msg = f"a point lies outside {self.box}"
            raise ValueError(msg)

    def _largest(self, sums: Integers, points: Integers) -> Integers:
        self._check(points)
        terms = np.flatnonzero(sums[:, : len(EXPONENTS)].any(axis=0))
        chosen = np.hstack([sums[:, terms], sums[:, len(EXPONENTS) :]])
        return _largest_of(
            _product(chosen, np.vstack([monomials(chunk, terms), self._ruled_bytes(chunk)]))
            for chunk in _chunks(points)
        )

    def _ruled_bytes(self, points: Integers) -> Integers:
        """The ruled sizes at points inside the box, (num_ruled, num_points).

        Each point is worked out once: a box holds few beside how many configurations are judged.
        """
        if not self.ruled:
            return np.zeros((0, len(points)), dtype=np.int64)
        places = np.ravel_multi_index(
            [
                (column - axis.start) // axis.step
                for column, axis in zip(points.T, self.box.axes, strict=True)
            ],
            [len(axis) for axis in self.box.axes],
        )
        distinct, first, index = np.unique(places, return_index=True, return_inverse=True)
        at = monomials(points[first]).T
        for place, row in zip(distinct.tolist(), at, strict=True):
            if place not in self._known:
                self._known[place] = [each.at(row).num_bytes() for each in self.ruled]
        return np.array([self._known[place] for place in distinct.tolist()], dtype=np.int64)[
            index
        ].T

    def trace_at(self, point: Point) -> Trace:
        """What `search.memory.trace.trace` would record at a point.

        Raises:
            ValueError: when the point lies outside the box.
        """
        self._check(np.array([point]))
        at = monomials(np.array([point]))[:, 0]
        formulas = [each.at(at) for each in self.ruled]
        sizes = [*(_matrix(self.sizes) @ at).tolist(), *(each.num_bytes() for each in formulas)]
        ruled = [*([None] * len(self.sizes)), *formulas]
        traced = trace_of(
            [
                Event(
                    phase=step.phase,
                    storage=step.storage,
                    num_bytes=sizes[step.size] if step.appears else -sizes[step.size],
                    operator=step.operator,
                    part=step.part,
                    formula=ruled[step.size],
                )
                for step in self.steps
            ]
        )
        return replace(
            traced,
            work=self.work.at(point) if self.work else None,
            uncertain=tuple(each.at(at) for each in self.uncertain),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` reads back to an equal program."""
        columns = dict(zip(Step._fields, zip(*self.steps, strict=True), strict=True))
        named = {name: list(dict.fromkeys(columns[name])) for name in _NAMED}
        for name, values in named.items():
            place = {value: index for index, value in enumerate(values)}
            columns[name] = tuple(place[value] for value in columns[name])
        return {
            "box": [[axis.start, axis.stop, axis.step] for axis in self.box.axes],
            "exponents": [list(row) for row in EXPONENTS],
            "sizes": [list(size) for size in self.sizes],
            "ruled": [
                [each.rule, [list(number) for number in each.numbers]] for each in self.ruled
            ],
            "uncertain": [list(each) for each in self.uncertain],
            "named": named,
            "steps": {name: list(column) for name, column in columns.items()},
            "work": self.work and self.work.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The program that `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: when it did not write that.
        """
        if record["exponents"] != [list(row) for row in EXPONENTS]:
            msg = "the terms of this program are not those of today"
            raise ValueError(msg)
        columns = dict(record["steps"])
        for name, kind in _NAMED.items():
            values = [kind(value) for value in record["named"][name]]
            columns[name] = [values[place] for place in columns[name]]
        ruled = [Ruled(name, tuple(map(tuple, numbers))) for name, numbers in record["ruled"]]
        if not all(is_known(each.rule) for each in ruled):
            msg = "a rule of this program is none of today"
            raise ValueError(msg)
        return cls(
            box=Box(**dict(zip(Box.__dataclass_fields__, _ranges(record["box"]), strict=True))),
            sizes=tuple(map(tuple, record["sizes"])),
            ruled=tuple(ruled),
            uncertain=tuple(
                Uncertain(tuple(below), tuple(above), adds_up)
                for below, above, adds_up in record["uncertain"]
            ),
            steps=tuple(
                Step(*row) for row in zip(*(columns[name] for name in Step._fields), strict=True)
            ),
            work=record["work"] and WorkProgram.from_json(record["work"]),
        )


def _matrix(sizes: Iterable[Coefficients]) -> Integers:
    """One row a size, (num_sizes, num_terms)."""
    return np.array([*sizes], dtype=np.int64).reshape(-1, len(EXPONENTS))


def _product(sums: Integers, values: Integers) -> npt.NDArray[Any]:
    """Their product, by BLAS where every whole number in it is exact."""
    largest = np.abs(sums) @ values.max(axis=1, initial=0)
    kind = np.float64 if largest.max(initial=0) < _EXACT_BYTES else np.int64
    return sums.astype(kind) @ values.astype(kind)


def _ranges(record: list[list[int]]) -> list[range]:
    return [range(*axis) for axis in record]


def _chunks(points: Integers) -> Iterator[Integers]:
    for start in range(0, len(points), _CHUNK):
        yield points[start : start + _CHUNK]


def _largest_of(chunks: Iterable[npt.NDArray[Any]]) -> Integers:
    """The largest of each column, over all chunks of columns."""
    largest = [chunk.max(axis=0).astype(np.int64) for chunk in chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *largest])
