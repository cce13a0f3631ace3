"""The event programs of an objective's structures: found when they pay, and kept."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search.memory.batches import num_micro_batches
from search.memory.files import read_json, write_json
from search.memory.polynomials import Integers
from search.memory.program import Box, EventProgram, Point
from search.memory.program_fit import (
    NoProgram,
    fit_program,
    halves,
    length_dimension,
    num_sure_traces,
    regimes,
)
from search.memory.target import Target
from search.memory.trace import MAX_MICRO_BATCHES, Trace, trace
from search.memory.work import Work
from search.objective import memory_neutral
from search.training_params import TrainingParams, memory_key, micro_batch_size

if TYPE_CHECKING:
    from search.compression.params import Deployment
    from search.objective import Objective
    from search.results import Params

Digest = Callable[[Any, Iterable["Params"]], str]


class Programs:
    """Traces configurations of one objective, most of them without running anything.

    The first configuration of a structure is traced; with the second a program is made where more
    configurations may be asked than it takes traces.
    """

    def __init__(
        self,
        objective: Objective,
        space: Iterable[Params],
        folder: Path,
        *,
        digest: Digest,
        target: Target,
        deployment: Deployment | None = None,
    ) -> None:
        """Runs nothing yet.

        Args:
            objective: what is to be trained.
            space: the configurations that may be asked, or a spread of them; gone through at
                the first question.
            folder: where programs are kept.
            digest: a name for some content and the batches of some configurations.
            target: the device to trace for.
            deployment: what follows training, and who teaches; default: nothing and nobody.
        """
        self._objective = objective
        self._announced = space
        self._folder = folder
        self._digest = digest
        self._target = target
        self._deployment = deployment
        self._traced: dict[tuple[str, Box], dict[Point, Trace]] = defaultdict(dict)
        self._found: dict[tuple[str, Box], EventProgram | NoProgram] = {}

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why some structures are traced point by point, each reason once."""
        kinds = (found for found in self._found.values() if isinstance(found, NoProgram))
        return tuple(dict.fromkeys(found.reason for found in kinds))

    def _trace(self, params: Params) -> Trace:
        return trace(self._objective, params, target=self._target, deployment=self._deployment)

    def trace(self, params: Params) -> Trace:
        """The events of a configuration, as `search.memory.trace.trace` gives them."""
        structure, point = self._structure(params), self._point(params)
        box = next((box for box in self._boxes.get(structure, ()) if _holds(box, point)), None)
        if box is None:
            return self._trace(params)
        traced = self._traced[structure, box]
        if not traced and self._kept(structure, box, params) is None:
            traced[point] = self._trace(params)
        if point in traced:
            return traced[point]
        program = self._program(structure, box, params)
        if isinstance(program, EventProgram):
            return program.trace_at(point)
        if program.is_divisible and self._divide(structure, box):
            return self.trace(params)
        return self._trace(params)

    def peak_bytes(self, params: Params, sizes: Integers) -> Integers:
        """The most bytes alive at once where a configuration has other sizes, (num_sizes,).

        Very many at once, by programs alone: -1 where there is none, or the sizes do not go
        together.

        Args:
            params: the configuration.
            sizes: samples of a step that one process computes, micro-batch size and length,
                (num_sizes, 3).
        """
        samples, micro_batch, length = sizes.T
        found = np.full(len(sizes), -1, dtype=np.int64)
        counts = samples // micro_batch
        waiting = np.maximum(0, counts - MAX_MICRO_BATCHES)
        points = np.stack([micro_batch, length, waiting], axis=1)
        kinds = np.where(samples % micro_batch == 0, np.minimum(counts, MAX_MICRO_BATCHES + 1), 0)
        for kind in {*kinds.tolist()} - {0}:
            (places,) = np.nonzero(kinds == kind)
            one = Point(*points[places[0]].tolist())
            of_kind = self._sized(params, one, num_traced=min(kind, MAX_MICRO_BATCHES))
            self._fill(found, places, points, of_kind)
        return found

    def _fill(self, found: Integers, places: Integers, points: Integers, params: Params) -> None:
        """Writes the peaks at some points of one structure, box by box."""
        structure = self._structure(params)
        waiting = list(self._boxes.get(structure, ()))
        while waiting:
            box = waiting.pop()
            inside = places[box.holds(points[places])]
            if not len(inside):
                continue
            program = self._program(structure, box, params)
            if isinstance(program, EventProgram):
                found[inside] = program.peak_bytes(points[inside])
            elif program.is_divisible and self._divide(structure, box):
                waiting += (half for half in self._boxes[structure] if half.lies_in(box))

    def _divide(self, structure: str, box: Box) -> bool:
        """Whether smaller boxes, in some of which a program may hold, now stand for this one.

        Events change where a size passes a threshold, as when a kernel sorts long inputs.
        """
        traced = self._traced.pop((structure, box))
        inside = [point for point in self._points[structure] if _holds(box, point)]
        smaller = tuple(half for half in halves(inside) if _pays(half, inside))
        if not smaller:
            self._traced[structure, box] = traced
            return False
        others = (other for other in self._boxes[structure] if other != box)
        self._boxes[structure] = (*others, *smaller)
        del self._found[structure, box]
        for half in smaller:
            known = {point: each for point, each in traced.items() if _holds(half, point)}
            self._traced[structure, half] = known
        return True

    def work(self, params: Params) -> Work:
        """What one step of a configuration computes and moves, from a trace where need be."""
        return self.trace(params).work or self._trace(params).work or Work()

    def _program(self, structure: str, box: Box, params: Params) -> EventProgram | NoProgram:
        key = structure, box
        found = self._kept(structure, box, params)
        if found is None:
            found = self._found[key] = self._fitted(self._file(*key, params), key, params)
        return found

    def _kept(self, structure: str, box: Box, params: Params) -> EventProgram | NoProgram | None:
        """What an earlier process has found, or this one; None where nobody has."""
        key = structure, box
        if key not in self._found:
            found = _read(self._file(structure, box, params))
            if found is None:
                return None
            self._found[key] = found
        return self._found[key]

    def _file(self, structure: str, box: Box, params: Params) -> Path:
        corners = [self._params_at(params, point) for point in (box.low, box.high)]
        return self._folder / f"{self._digest([structure, str(box)], corners)}.json"

    def _fitted(self, file: Path, key: tuple[str, Box], params: Params) -> EventProgram | NoProgram:
        traced = self._traced[key]

        def trace_at(point: Point) -> Trace:
            if point not in traced:
                traced[point] = self._trace(self._params_at(params, point))
            return traced[point]

        found = fit_program(trace_at, key[1])
        with suppress(OSError):  # where nothing can be kept, it is found again
            kept = found.to_json() if isinstance(found, EventProgram) else asdict(found)
            write_json(file, kept)
        return found

    @cached_property
    def _space(self) -> tuple[Params, ...]:
        return tuple(self._announced)

    @cached_property
    def length(self) -> str | None:
        """The dimension that is the length of a sample; None where there is none."""
        return next((length_dimension(self._objective, first) for first in self._space), None)

    @cached_property
    def _points(self) -> dict[str, set[Point]]:
        """What may be asked of each structure."""
        points: dict[str, set[Point]] = defaultdict(set)
        for params in self._space:
            for resolved in _resolved(params):
                points[self._structure(resolved)].add(self._point(resolved))
        return points

    @cached_property
    def _boxes(self) -> dict[str, tuple[Box, ...]]:
        """The boxes of each structure in which a program pays."""
        return {
            structure: tuple(box for box in regimes(sorted(asked)) if _pays(box, asked))
            for structure, asked in self._points.items()
        }

    def _structure(self, params: Params) -> str:
        """All that decides the memory but the sizes a program is for."""
        sizes = {"batch_size", "micro_batch_size", self.length}
        decides = memory_key(params, memory_neutral(self._objective))
        kept = {name: value for name, value in decides.items() if name not in sizes}
        kept["micro_batches"] = min(num_micro_batches(params), MAX_MICRO_BATCHES + 1)
        return json.dumps(kept, sort_keys=True, default=str)

    def _point(self, params: Params) -> Point:
        return Point(
            micro_batch_size(params),
            self._length_of(params),
            max(0, num_micro_batches(params) - MAX_MICRO_BATCHES),
        )

    def _length_of(self, params: Params) -> int:
        for dimension in fields(self._objective.parameters):
            if dimension.name == self.length:
                return int(params.get(dimension.name, dimension.default))  # type: ignore[arg-type]
        return 1

    def _params_at(self, params: Params, point: Point) -> Params:
        """A configuration of the same structure at another point."""
        num_traced = min(num_micro_batches(params), MAX_MICRO_BATCHES)
        return self._sized(params, point, num_traced=num_traced)

    def _sized(self, params: Params, point: Point, *, num_traced: int) -> Params:
        count = (num_traced + point.num_waiting) * TrainingParams.of(params).world_size
        sizes = {
            "batch_size": point.micro_batch_size * count,
            "micro_batch_size": point.micro_batch_size,
        }
        length = {self.length: point.length} if self.length else {}
        return {**params, **sizes, **length}


def _resolved(params: Params) -> Iterator[Params]:
    """The configuration itself, or with every micro-batch size that `auto` may become."""
    try:
        training = TrainingParams.of(params)
    except ValueError:  # sizes that do not go together, which nobody will ask for
        return
    if training.micro_batch_size != "auto":
        yield params
        return
    for size in range(1, training.samples_per_rank + 1):
        if training.samples_per_rank % size == 0:
            yield {**params, "micro_batch_size": size}


def _holds(box: Box, point: Point) -> bool:
    return bool(box.holds(np.array([point]))[0])


def _pays(box: Box, points: Iterable[Point]) -> bool:
    return sum(_holds(box, point) for point in points) > num_sure_traces(box)


def _read(file: Path) -> EventProgram | NoProgram | None:
    record = read_json(file)
    try:
        return NoProgram(**record) if "reason" in record else EventProgram.from_json(record)
    except (KeyError, TypeError, ValueError):
        return None
