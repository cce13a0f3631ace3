"""The work of one structure for every micro-batch size and length: polynomials, as its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from search.memory.polynomials import EXPONENTS, Coefficients, Integers, monomials, sparsest
from search.memory.work import Arithmetic, OperatorWork, Work

_MAX_TERMS = 4
"""Bytes are sums over an operator's inputs and outputs, which have more terms than one of them."""


class WorkStep(NamedTuple):
    """An operator whose FLOPs and bytes are the polynomials of these numbers."""

    arithmetic: Arithmetic
    flops: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkProgram:
    """The operators of a step in order; see `Work` for what repeats."""

    polynomials: tuple[Coefficients, ...]
    steps: tuple[WorkStep, ...]
    repeated_from: int
    repeated_to: int

    def at(self, point: tuple[int, int, int]) -> Work:
        """The work at a micro-batch size, a length and a number of waiting micro-batches."""
        coefficients = np.array(self.polynomials, dtype=np.int64)
        values = (coefficients @ monomials(np.array([point]))[:, 0]).tolist()
        return Work(
            operators=tuple(
                OperatorWork(step.arithmetic, values[step.flops], values[step.num_bytes])
                for step in self.steps
            ),
            repeated_from=self.repeated_from,
            repeated_to=self.repeated_to,
            num_waiting=point[2],
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` reads back to an equal program."""
        return {
            "polynomials": [list(each) for each in self.polynomials],
            "steps": [list(step) for step in self.steps],
            "repeated": [self.repeated_from, self.repeated_to],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The program that `to_json` wrote."""
        repeated_from, repeated_to = record["repeated"]
        return cls(
            polynomials=tuple(map(tuple, record["polynomials"])),
            steps=tuple(WorkStep(Arithmetic(kind), *rest) for kind, *rest in record["steps"]),
            repeated_from=repeated_from,
            repeated_to=repeated_to,
        )


def fit_work(
    points: Sequence[tuple[int, int, int]], works: Sequence[Work], *, axes: Sequence[int]
) -> WorkProgram | None:
    """The program that gives the work of every trace, each polynomial confirmed by one of them.

    None where the operators differ from trace to trace, or one is no single such polynomial.

    Args:
        points: micro-batch size, length and number of waiting micro-batches of each trace.
        works: the work of each.
        axes: how many values each of the three may take.
    """
    first = works[0]
    if any(_shape(work) != _shape(first) for work in works):
        return None
    columns = list(zip(*(work.operators for work in works), strict=True))
    flops = [tuple(work.flops for work in column) for column in columns]
    num_bytes = [tuple(work.num_bytes for work in column) for column in columns]
    polynomials = _polynomials(np.array(points), {*flops, *num_bytes}, axes)
    if polynomials is None:
        return None
    number = {values: index for index, values in enumerate(polynomials)}
    return WorkProgram(
        polynomials=tuple(polynomials.values()),
        steps=tuple(
            WorkStep(column[0].arithmetic, number[of_flops], number[of_bytes])
            for column, of_flops, of_bytes in zip(columns, flops, num_bytes, strict=True)
        ),
        repeated_from=first.repeated_from,
        repeated_to=first.repeated_to,
    )


def _shape(work: Work) -> tuple[object, ...]:
    kinds = tuple(operator.arithmetic for operator in work.operators)
    return kinds, work.repeated_from, work.repeated_to


def _polynomials(
    points: Integers, columns: Iterable[tuple[int, ...]], axes: Sequence[int]
) -> dict[tuple[int, ...], Coefficients] | None:
    found: dict[tuple[int, ...], Coefficients] = {}
    for values in sorted(columns):
        if not any(values):
            found[values] = (0,) * len(EXPONENTS)
            continue
        solutions = sparsest(points, values, axes=axes, max_terms=min(_MAX_TERMS, len(points) - 1))
        if len(solutions) != 1:
            return None
        found[values] = solutions[0]
    return found
