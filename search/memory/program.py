"""The memory of one structure for every micro-batch size and length, without another trace.

A structure is everything of a configuration but those sizes. Left out: how a program is obtained,
see `search.memory.program_fit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from search.memory.polynomials import (
    EXPONENTS,
    Coefficients,
    Integers,
    maximal,
    monomials,
    undominated,
)
from search.memory.trace import Event, Part, Phase, Trace, trace_of
from search.memory.work_program import WorkProgram

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
        return all(_on(column, axis) for column, axis in zip(points.T, self.axes, strict=True))


def _on(column: Integers, axis: range) -> bool:
    inside = (column >= axis[0]) & (column <= axis[-1])
    return bool((inside & ((column - axis[0]) % axis.step == 0)).all())


class Step(NamedTuple):
    """An event whose size is a polynomial: `sizes[size]` bytes appear, or go if not `appears`."""

    phase: Phase
    storage: int
    appears: bool
    size: int
    operator: str
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class EventProgram:
    """The events of a structure in order, each size a polynomial of the point.

    Sizes are exact, to the byte, as far as the traces that made it tell: inside `box` alone.
    `work` is None where what a step computes and moves is no such polynomial.
    """

    box: Box
    sizes: tuple[Coefficients, ...]
    steps: tuple[Step, ...]
    work: WorkProgram | None = None
    _peaks: Mapping[Phase, Integers] = field(init=False, repr=False, compare=False)
    _peak: Integers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Finds the sums that may be the largest of their phase, and of all."""
        sums = self._alive()
        phases = np.array([step.phase.value for step in self.steps])
        peaks = {
            phase: undominated(sums[phases == phase.value], self.box.low, self.box.high)
            for phase in Phase
            if (phases == phase.value).any()
        }
        object.__setattr__(self, "_peaks", peaks)
        together = np.concatenate(list(peaks.values()))
        object.__setattr__(self, "_peak", undominated(together, self.box.low, self.box.high))

    def _alive(self) -> Integers:
        """What is alive after each event, as polynomials, (num_events, num_terms)."""
        return self._counts() @ np.array(self.sizes, dtype=np.int64)

    def _counts(self) -> Integers:
        """How many blocks of each size are alive after each event, (num_events, num_sizes)."""
        changes = np.zeros((len(self.steps), len(self.sizes)), dtype=np.int64)
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
        sizes = np.array(self.sizes, dtype=np.int64)
        return _largest_of(
            counts @ (-(sizes @ monomials(chunk) // -unit_bytes)) * unit_bytes
            for chunk in _chunks(points)
        )

    def _check(self, points: Integers) -> None:
        if not self.box.covers(points):
            msg = f"a point lies outside {self.box}"
            raise ValueError(msg)

    def _largest(self, sums: Integers, points: Integers) -> Integers:
        self._check(points)
        terms = np.flatnonzero(sums.any(axis=0))
        kind = np.float64 if self._most_bytes(sums) < _EXACT_BYTES else np.int64
        chosen = sums[:, terms].astype(kind)
        return _largest_of(
            chosen @ monomials(chunk, terms).astype(kind) for chunk in _chunks(points)
        )

    def _most_bytes(self, sums: Integers) -> int:
        """No sum of some of the terms, of either sign, is larger anywhere in the box."""
        return int((np.abs(sums) @ monomials(np.array([self.box.high]))).max())

    def trace_at(self, point: Point) -> Trace:
        """What `search.memory.trace.trace` would record at a point.

        Raises:
            ValueError: when the point lies outside the box.
        """
        self._check(np.array([point]))
        sizes = (np.array(self.sizes) @ monomials(np.array([point]))[:, 0]).tolist()
        traced = trace_of(
            [
                Event(
                    phase=step.phase,
                    storage=step.storage,
                    num_bytes=sizes[step.size] if step.appears else -sizes[step.size],
                    operator=step.operator,
                    part=step.part,
                )
                for step in self.steps
            ]
        )
        return replace(traced, work=self.work.at(point) if self.work else None)

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` reads back to an equal program."""
        names = sorted({step.operator for step in self.steps})
        number = {name: index for index, name in enumerate(names)}
        return {
            "box": [[axis.start, axis.stop, axis.step] for axis in self.box.axes],
            "exponents": [list(row) for row in EXPONENTS],
            "sizes": [list(size) for size in self.sizes],
            "operators": names,
            "steps": [[*step[:4], number[step.operator], step.part] for step in self.steps],
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
        names = record["operators"]
        return cls(
            box=Box(**dict(zip(Box.__dataclass_fields__, _ranges(record["box"]), strict=True))),
            sizes=tuple(map(tuple, record["sizes"])),
            steps=tuple(
                Step(Phase(phase), storage, appears, size, names[operator], Part(part))
                for phase, storage, appears, size, operator, part in record["steps"]
            ),
            work=record["work"] and WorkProgram.from_json(record["work"]),
        )


def _ranges(record: list[list[int]]) -> list[range]:
    return [range(*axis) for axis in record]


def _chunks(points: Integers) -> Iterator[Integers]:
    for start in range(0, len(points), _CHUNK):
        yield points[start : start + _CHUNK]


def _largest_of(chunks: Iterable[npt.NDArray[Any]]) -> Integers:
    """The largest of each column, over all chunks of columns."""
    largest = [chunk.max(axis=0).astype(np.int64) for chunk in chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *largest])
