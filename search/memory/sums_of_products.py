"""Sums of products of dimensions, no factor negative, fitted to few bytes: they never fall."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MAX_FACTORS = 4
"""Of one product: a batch x a length x a width x a number of layers."""
_RIDGE, _SQUARE_RIDGE = 1e-3, 1e-2
"""Weights that choose among sums that all explain the runs: see `fitted_sum`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOfProducts:
    """Bytes as a sum over products; `units` are the sizes in which the dimensions are counted.

    `exponents` has the powers of each product, (num_products, num_dimensions).
    """

    exponents: npt.NDArray[np.int64]
    factors: Floats
    units: Floats

    def at(self, point: Floats) -> float:
        """Bytes at one point, (num_dimensions,)."""
        return float(_products(point[None, :] / self.units, self.exponents)[0] @ self.factors)


def fitted_sum(points: Floats, num_bytes: Floats) -> SumOfProducts:
    """The sum nearest to what was measured, by relative error.

    Fewer runs than products leave it open which of them explain the bytes. Then the sum that
    spreads them evenly is taken, a square one hundredth as readily as a product without: memory
    is linear in most dimensions, by far. More than a guess needs more runs.

    Args:
        points: where, (num_runs, num_dimensions), none negative.
        num_bytes: what was measured, (num_runs,).
    """
    largest = points.max(axis=0, initial=0.0)
    units = np.where(largest > 0, largest, 1.0)
    exponents = _exponents(points.shape[1])
    weights = 1 / np.maximum(num_bytes, 1.0)
    rows = _products(points / units, exponents) * weights[:, None]
    ridge = np.where(exponents.max(axis=1, initial=0) > 1, _SQUARE_RIDGE, _RIDGE)
    factors = nonnegative_least_squares(
        np.vstack([rows * num_bytes.mean(), np.diag(ridge)]),
        np.concatenate([num_bytes * weights, np.zeros(len(ridge))]),
    )
    return SumOfProducts(exponents=exponents, factors=factors * num_bytes.mean(), units=units)


def _exponents(num_dimensions: int) -> npt.NDArray[np.int64]:
    """Every product of up to four different dimensions, and each of them with one squared."""
    places = range(num_dimensions)
    sets = [
        chosen
        for count in range(min(num_dimensions, _MAX_FACTORS) + 1)
        for chosen in itertools.combinations(places, count)
    ]
    plain = [[int(place in chosen) for place in places] for chosen in sets]
    squared = [
        [int(place in chosen) + int(place == twice) for place in places]
        for chosen in sets
        for twice in chosen
    ]
    return np.array([*plain, *squared], dtype=np.int64).reshape(-1, num_dimensions)


def _products(points: Floats, exponents: npt.NDArray[np.int64]) -> Floats:
    """The value of each product at each point, (num_points, num_products)."""
    return np.asarray(np.prod(points[:, None, :] ** exponents[None, :, :], axis=2))


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 with the least |matrix x - target|, for a matrix of full column rank.

    Source: algorithm NNLS of Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    num_columns = matrix.shape[1]
    solution, free = np.zeros(num_columns), np.zeros(num_columns, dtype=bool)
    tolerance = 1e-10 * float(np.abs(matrix.T @ target).max(initial=0.0))
    for _ in range(3 * num_columns):
        gradient = np.where(free, -np.inf, matrix.T @ (target - matrix @ solution))
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        free[int(gradient.argmax())] = True
        solution = _feasible(matrix, target, solution, free)
    return solution


def _feasible(
    matrix: Floats, target: Floats, solution: Floats, free: npt.NDArray[np.bool_]
) -> Floats:
    """The least squares over the free columns, those that would fall below 0 taken back."""
    while True:
        wanted = np.zeros_like(solution)
        wanted[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        below = free & (wanted <= 0)
        if not below.any():
            return wanted
        step = (solution[below] / (solution[below] - wanted[below])).min()
        solution = solution + step * (wanted - solution)
        free &= solution > 1e-12 * solution.max(initial=0.0)
        solution = np.where(free, solution, 0.0)
