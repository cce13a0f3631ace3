"""Dominance, ranks and hypervolume of points; lower is better in every coordinate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import moocore
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

REFERENCE_MARGIN = 0.1
"""Share of a coordinate's spread that the reference point lies beyond the worst point.

Source: Ishibuchi et al. 2018, 'How to specify a reference point in hypervolume calculation for
fair performance comparison', Evolutionary Computation 26(3): slightly beyond the worst of the
front, so that its ends count.
"""


def front_mask(points: ArrayLike) -> NDArray[np.bool_]:
    """Whether each point is dominated by no other, shape (num_points,).

    All copies of a point of the front are on it.

    Args:
        points: finite numbers, shape (num_points, num_metrics).

    Raises:
        ValueError: on another shape, or on NaN or infinity, which nothing can be compared with.
    """
    checked = _checked(points)
    if not len(checked):
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(moocore.is_nondominated(checked, keep_weakly=True), dtype=np.bool_)


def ranks(points: ArrayLike) -> NDArray[np.int64]:
    """How many fronts to peel off before a point is on one: 0 on the front, shape (num_points,).

    Args:
        points: finite numbers, shape (num_points, num_metrics).

    Source: Deb et al. 2002, NSGA-II, section III A.
    """
    checked = _checked(points)
    if not len(checked):
        return np.zeros(0, dtype=np.int64)
    return np.asarray(moocore.pareto_rank(checked), dtype=np.int64)


def reference_point(points: ArrayLike) -> NDArray[np.float64]:
    """The worst of each coordinate and a margin, shape (num_metrics,): all points dominate it.

    The margin is a tenth of the coordinate's spread; without spread, a tenth of its size, or 1 at
    0. Hypervolumes compare only when they are taken against the same reference point.

    Args:
        points: at least one, shape (num_points, num_metrics).
    """
    checked = _checked(points)
    if not len(checked):
        msg = "a reference point needs at least one point"
        raise ValueError(msg)
    worst, best = checked.max(axis=0), checked.min(axis=0)
    size = np.where(worst == 0, 1 / REFERENCE_MARGIN, np.abs(worst))
    return np.asarray(worst + REFERENCE_MARGIN * np.where(worst > best, worst - best, size))


def hypervolume(points: ArrayLike, reference: Sequence[float] | NDArray[np.float64]) -> float:
    """The volume that the points dominate below `reference`, in the product of the metrics' units.

    A point that is not below `reference` in every coordinate adds nothing.

    Args:
        points: finite numbers, shape (num_points, num_metrics).
        reference: shape (num_metrics,).
    """
    checked = _checked(points)
    if not len(checked):
        return 0.0
    return float(moocore.hypervolume(checked, ref=np.asarray(reference, dtype=np.float64)))


def _checked(points: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(points, dtype=np.float64)
    if array.size == 0:
        return np.zeros((0, 1))
    if array.ndim != 2:
        msg = f"points must have the shape (num_points, num_metrics), found {array.shape}"
        raise ValueError(msg)
    if not np.isfinite(array).all():
        msg = "points must be finite: NaN and infinity cannot be compared"
        raise ValueError(msg)
    return array
