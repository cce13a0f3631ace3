"""Bytes that never fall in any dimension: bounds from what was measured, and a guess between them.

A point dominates another where it is nowhere smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from search.memory.sums_of_products import SumOfProducts, fitted_sum

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bytes between the bounds that measured runs set; `high_bytes` is None where none does.

    Where measured runs contradict each other, a smaller one having taken more, both are inside.
    """

    low_bytes: int
    expected_bytes: int
    high_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of one category: `num_bytes` were measured, or not enough where one `ran_out`.

    Args:
        points: (num_runs, num_dimensions), none negative.
        num_bytes: (num_runs,).
        ran_out: (num_runs,).
    """

    points: Floats
    num_bytes: Floats
    ran_out: Bools

    def estimate(self, point: Sequence[float]) -> Estimate:
        """What a run at the point needs; never less than at a point that it dominates.

        The fitted sum, cut to the bounds: each of the three never falls, and so neither does what
        comes back. At a measured point the bounds meet.
        """
        at = np.asarray(point, dtype=np.float64)
        bounds = (self._from_below(at), self._from_above(at))
        low, high = min(bounds), max(bounds)
        expected = min(max(self._sum.at(at), low), high)
        return Estimate(
            low_bytes=int(low),
            expected_bytes=round(expected),
            high_bytes=None if np.isinf(high) else int(high),
        )

    def ruled_out_by(self, point: Sequence[float]) -> int | None:
        """Which run that the point dominates ran out of memory, the one that had the most."""
        smaller = self._believed & self._below(np.asarray(point, dtype=np.float64))
        if not smaller.any():
            return None
        return int(np.where(smaller, self.num_bytes, -np.inf).argmax())

    def _from_below(self, at: Floats) -> float:
        needed = np.where(self.ran_out, self.num_bytes + 1, self.num_bytes)
        counts = self._below(at) & (self._believed | ~self.ran_out)
        return float(needed[counts].max(initial=0.0))

    def _from_above(self, at: Floats) -> float:
        larger = (self.points >= at).all(axis=1) & ~self.ran_out
        return float(self.num_bytes[larger].min(initial=np.inf))

    def _below(self, at: Floats) -> Bools:
        return np.asarray((self.points <= at).all(axis=1))

    @cached_property
    def _believed(self) -> Bools:
        """What ran out and is not contradicted.

        A run at least as large that took no more than the other could have had shows that it was
        something else that ran out: another process on the device, or fragmentation.
        """
        larger = (self.points[None, :, :] >= self.points[:, None, :]).all(axis=2)
        took_no_more = self.num_bytes[None, :] <= self.num_bytes[:, None]
        contradicted = (larger & took_no_more & ~self.ran_out[None, :]).any(axis=1)
        believed: Bools = self.ran_out & ~contradicted
        return believed

    @cached_property
    def _sum(self) -> SumOfProducts:
        """Fitted to what was measured, and to the bound of what ran out where it fell below it."""
        counts = self._believed if self.ran_out.all() else ~self.ran_out
        while True:
            fitted = fitted_sum(self.points[counts], self.num_bytes[counts])
            expected = np.array([fitted.at(point) for point in self.points])
            missed = self._believed & ~counts & (expected <= self.num_bytes)
            if not missed.any():
                return fitted
            counts = counts | missed
