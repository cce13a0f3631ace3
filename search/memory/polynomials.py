"""Whole-numbered polynomials in the sizes of a micro-batch: found from few values, and bounded.

A polynomial is its coefficients over `EXPONENTS`, one for each product of powers of the variables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Coefficients = tuple[int, ...]

_SHAPE = (3, 3, 2)
EXPONENTS = tuple(itertools.product(*map(range, _SHAPE)))
"""Powers of micro-batch size, length and number of waiting micro-batches, one row a term."""

_LIKELY = tuple(
    exponents
    for exponents in EXPONENTS
    if exponents[2] <= exponents[0] < 2 or exponents[1:] == (0, 0)
)
"""What sizes are made of: 1, b, b^2, s, s^2, bs, bs^2, and ub, ubs, ubs^2 for waiting inputs."""


def monomials(points: Integers, terms: Iterable[int] | None = None) -> Integers:
    """The value of each term at each point, (num_terms, num_points).

    Args:
        points: values of the variables, (num_points, num_variables).
        terms: which terms, as places in `EXPONENTS`; default: all.
    """
    chosen = range(len(EXPONENTS)) if terms is None else terms
    return np.array([_product(points, EXPONENTS[term]) for term in chosen], dtype=np.int64)


def _product(points: Integers, exponents: Sequence[int]) -> Integers:
    product = np.ones(len(points), dtype=np.int64)
    for column, exponent in zip(points.T, exponents, strict=True):
        for _ in range(exponent):
            product *= column
    return product


def sparsest(
    points: Integers, values: Sequence[int], *, axes: Sequence[int], max_terms: int
) -> list[Coefficients]:
    """The polynomials of the fewest terms that have these values; none with at most `max_terms`.

    More than one means that more points are needed. At `n` points there should be at least
    two more than terms, so that what is found is confirmed and not merely possible.

    Args:
        points: where, (num_points, num_variables).
        values: the value at each.
        axes: the number of different values each variable may take: on two of them a square says
            nothing that a line does not.
        max_terms: the most terms to try.
    """
    at = monomials(points).T.tolist()
    capped = (tuple(map(min, exponents, (axis - 1 for axis in axes))) for exponents in _LIKELY)
    terms = [EXPONENTS.index(exponents) for exponents in dict.fromkeys(capped)]
    for count in range(1, max_terms + 1):
        solutions = (
            _solution(at, values, chosen) for chosen in itertools.combinations(terms, count)
        )
        found = dict.fromkeys(solution for solution in solutions if solution is not None)
        if found:
            return list(found)
    return []


def _solution(
    at: Sequence[Sequence[int]], values: Sequence[int], chosen: Sequence[int]
) -> Coefficients | None:
    """The one whole-numbered combination of the chosen terms with these values, if there is one."""
    rows = [
        [*(Fraction(row[term]) for term in chosen), Fraction(value)]
        for row, value in zip(at, values, strict=True)
    ]
    for column in range(len(chosen)):
        pivot = next((row for row in rows[column:] if row[column]), None)
        if pivot is None:
            return None
        rows.remove(pivot)
        rows = [_without(row, pivot, column) for row in rows]
        rows.insert(column, [entry / pivot[column] for entry in pivot])
    solved, left = rows[: len(chosen)], rows[len(chosen) :]
    if any(row[-1] for row in left) or any(row[-1].denominator > 1 for row in solved):
        return None
    found = dict(zip(chosen, (int(row[-1]) for row in solved), strict=True))
    return tuple(found.get(term, 0) for term in range(len(EXPONENTS)))


def _without(row: list[Fraction], pivot: list[Fraction], column: int) -> list[Fraction]:
    factor = row[column] / pivot[column]
    return [entry - factor * other for entry, other in zip(row, pivot, strict=True)]


def undominated(polynomials: Integers, low: Sequence[int], high: Sequence[int]) -> Integers:
    """The polynomials that may be the largest somewhere in a box, without those that never are.

    One is left out when another's Bernstein coefficients over the box are all at least its own:
    their difference then is nowhere negative.

    Args:
        polynomials: coefficients, (num_polynomials, num_terms); any columns after the terms count
            quantities that are nowhere negative.
        low: the box's low corner, one value a variable.
        high: its high corner.

    Source: Farouki 2012, "The Bernstein polynomial basis: a centennial retrospective", section 4.
    """
    distinct = np.unique(polynomials, axis=0)
    terms, others = distinct[:, : len(EXPONENTS)], distinct[:, len(EXPONENTS) :]
    return distinct[maximal(np.hstack([_bernstein(terms, low, high), others]))]


def maximal(rows: Integers) -> list[int]:
    """The places of the rows that no other row equals or exceeds in every column."""
    kept: list[int] = []
    for index in np.argsort(-rows.sum(axis=1), kind="stable"):
        if not (rows[kept] >= rows[index]).all(axis=1).any():
            kept.append(int(index))
    return kept


def _bernstein(polynomials: Integers, low: Iterable[int], high: Iterable[int]) -> Integers:
    """Twice the Bernstein coefficients for each variable that may be squared: whole numbers."""
    grid = polynomials.reshape(-1, *_SHAPE)
    for axis, (start, end) in enumerate(zip(low, high, strict=True)):
        width = end - start
        powers = [[1, 0, 0], [start, width, 0], [start**2, 2 * start * width, width**2]]
        to_bernstein = [[2, 2, 2], [0, 1, 2], [0, 0, 2]]
        if _SHAPE[axis] == 2:
            powers, to_bernstein = [[1, 0], [start, width]], [[1, 1], [0, 1]]
        matrix = np.array(powers) @ np.array(to_bernstein)
        grid = np.moveaxis(np.tensordot(grid, matrix, axes=(axis + 1, 0)), -1, axis + 1)
    return grid.reshape(len(polynomials), -1)
