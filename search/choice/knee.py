"""Where a front bends most: the choice of somebody who states no preference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FLAT = 1e-9
"""A distance, in shares of the front's extent, below which rounding cannot tell a bulge."""


def knee_order(points: Sequence[Sequence[float]]) -> tuple[list[int], bool]:
    """Indices of the points of a front from the knee on, and whether there is a knee at all.

    Every metric is scaled to the front's own extent; one without extent is left out. The knee is
    the point farthest from the plane through the extremes, on the side of the ideal point. A front
    of one or two points, a straight one and one that bulges away have none: then the point comes
    first that gives up least in the metric in which it gives up most.

    Args:
        points: mutually undominated, lower is better, shape (num_points, num_metrics).

    Source: Das 1999, 'On characterizing the knee of the Pareto curve based on Normal-Boundary
    Intersection', Structural Optimization 18.
    """
    array = np.asarray(points, dtype=np.float64)
    low, high = array.min(axis=0), array.max(axis=0)
    wide = high > low
    scaled = (array[:, wide] - low[wide]) / (high[wide] - low[wide])
    if scaled.shape[1] == 0:
        return list(range(len(array))), False
    distances = _distances(scaled)
    bends = bool(distances.max() > _FLAT)
    first = -distances if bends else scaled.max(axis=1)
    keys = [np.round(first, 12), np.round(scaled.sum(axis=1), 12), *array.T]
    return [int(index) for index in np.lexsort(keys[::-1])], bends


def _distances(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each point lies from the plane through the extremes towards the ideal point."""
    normal = _plane_normal(scaled)
    return np.asarray((1 - scaled @ normal) / np.linalg.norm(normal))


def _plane_normal(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """`normal` of the plane `normal @ x == 1` through the best point of each metric.

    Where these points span no plane that faces the ideal point, the one through the unit points.
    """
    num_metrics = scaled.shape[1]
    sums = scaled.sum(axis=1)
    best = [int(np.lexsort((sums, scaled[:, metric]))[0]) for metric in range(num_metrics)]
    try:
        normal = np.linalg.solve(scaled[best], np.ones(num_metrics))
    except np.linalg.LinAlgError:
        return np.ones(num_metrics)
    faces_ideal = bool(np.isfinite(normal).all() and (normal > _FLAT).all())
    return np.asarray(normal, dtype=np.float64) if faces_ideal else np.ones(num_metrics)
