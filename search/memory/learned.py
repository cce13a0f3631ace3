"""Memory of a training function that cannot be traced, learned from its own trials.

What is known without a trace: more of a dimension that was declared to need memory never needs
less. So a run that was measured bounds all that are smaller in each of these dimensions from above
and all that are larger from below, and one that ran out of memory rules out all that are larger.
Between and beyond the bounds a sum of products of the dimensions, with no negative factor, is
fitted: such a sum never falls, is what the sizes of tensors are (`search.memory.polynomials`), and
says something of sizes that were never tried, where isotonic regression is flat.

Other dimensions are categories: a run says nothing of one that differs in them. Left out: real
numbers that were not declared, such as a learning rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from search.errors import InputError
from search.memory.monotone import Estimate, Runs
from search.results import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A run that took `num_bytes`; where it `ran_out` of memory, one that needed more than them."""

    params: Params
    num_bytes: int
    ran_out: bool = False


class LearnedMemory:
    """What the runs seen so far say of others. Does not change; make a new one with more runs."""

    def __init__(
        self,
        dimensions: Sequence[str],
        observations: Iterable[Observation] = (),
        neutral: Collection[str] = (),
    ) -> None:
        """Sorts the runs by category.

        Args:
            dimensions: those in which memory never falls; each a number from 0 in all params.
            observations: what was seen, oldest first.
            neutral: dimensions that have no say in memory, such as the seed.

        Raises:
            InputError: when a run lacks a declared dimension, or it is no number from 0.
        """
        self._dimensions = tuple(dimensions)
        self._neutral = frozenset(neutral)
        self._groups: dict[Hashable, list[Observation]] = defaultdict(list)
        for seen in observations:
            self._groups[self._category(seen.params)].append(seen)
        self._learned = {key: self._group(seen) for key, seen in self._groups.items()}

    def estimate(self, params: Params) -> Estimate | None:
        """What a run will need, as far as others tell; None where none of its category ran."""
        point, group = self._point(params), self._learned.get(self._category(params))
        return group.estimate(point) if group else None

    def ruled_out_by(self, params: Params) -> Observation | None:
        """A run that was nowhere larger and ran out of memory, the one with the most if several.

        Left out: one that a run at least as large contradicts, by taking no more than it could
        have had.
        """
        category = self._category(params)
        group, point = self._learned.get(category), self._point(params)
        index = group.ruled_out_by(point) if group else None
        return None if index is None else self._groups[category][index]

    def tells_apart(self, params: Params) -> bool:
        """Whether enough ran to tell the dimensions apart: one for each, and two more."""
        return len(self._groups.get(self._category(params), ())) >= len(self._dimensions) + 2

    def order(self, candidates: Iterable[Params]) -> tuple[int, ...]:
        """Their places from small to large: none before one that it dominates. Ties stay.

        Each dimension counts by rank among the candidates, so that none outweighs the others.
        """
        points = [self._point(params) for params in candidates]
        ranks: list[dict[float, int]] = [
            {value: rank for rank, value in enumerate(sorted(set(values)))}
            for values in zip(*points, strict=True)
        ]

        def size(index: int) -> float:
            pairs = zip(ranks, points[index], strict=True)
            return sum(rank[value] / max(1, len(rank) - 1) for rank, value in pairs)

        return tuple(sorted(range(len(points)), key=size))

    def _group(self, seen: Sequence[Observation]) -> Runs:
        return Runs(
            points=np.array([self._point(each.params) for each in seen], dtype=np.float64),
            num_bytes=np.array([each.num_bytes for each in seen], dtype=np.float64),
            ran_out=np.array([each.ran_out for each in seen], dtype=bool),
        )

    def _point(self, params: Params) -> tuple[float, ...]:
        return tuple(_size(params, name) for name in self._dimensions)

    def _category(self, params: Params) -> Hashable:
        apart = {*self._dimensions, *self._neutral}
        return frozenset(
            (name, type(value), value)
            for name, value in params.items()
            if name not in apart and not isinstance(value, float)
        )


def _size(params: Params, name: str) -> float:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        found = repr(value) if name in params else "nothing"
        msg = (
            f"{name}: a dimension declared to need memory must be a number from 0, found {found} "
            "(give it one, or declare only dimensions in which memory grows)"
        )
        raise InputError(msg)
    return float(value)
