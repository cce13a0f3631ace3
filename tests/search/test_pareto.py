from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from search.pareto import front_mask, hypervolume, ranks, reference_point

# Small whole numbers, so that ties and duplicates are frequent.
POINTS = st.integers(1, 3).flatmap(
    lambda num_metrics: arrays(
        np.float64,
        st.tuples(st.integers(1, 25), st.just(num_metrics)),
        elements=st.integers(-4, 4).map(float),
    )
)


def dominates(first, second):
    return bool((first <= second).all() and (first < second).any())


def naive_front(points):
    return np.array([not any(dominates(other, point) for other in points) for point in points])


def naive_ranks(points):
    found = np.full(len(points), -1)
    rank = 0
    while (found < 0).any():
        left = np.flatnonzero(found < 0)
        found[left[naive_front(points[left])]] = rank
        rank += 1
    return found


def test_front_by_hand():
    # (1,3), (2,2), (3,1) trade; (3,3) loses to all; the copy of (2,2) is as good as the first.
    points = [[1, 3], [2, 2], [3, 1], [3, 3], [2, 2]]
    assert front_mask(points).tolist() == [True, True, True, False, True]
    assert ranks(points).tolist() == [0, 0, 0, 1, 0]


def test_a_tie_in_one_metric_is_dominated():
    assert front_mask([[1, 1], [1, 2]]).tolist() == [True, False]


def test_hypervolume_by_hand():
    # Against (4,4): (1,3) covers 3 x 1, (2,2) adds 2 x 1, (3,1) adds 1 x 1.
    assert hypervolume([[1, 3], [2, 2], [3, 1]], [4, 4]) == 6
    assert hypervolume([[5, 0]], [4, 4]) == 0


def test_reference_point_by_hand():
    # Spread 10 gives a margin of 1; no spread at 5 gives 0.5; no spread at 0 gives 1.
    assert reference_point([[0, 5, 0], [10, 5, 0]]).tolist() == [11, 5.5, 1]
    assert reference_point([[-5.0]]).tolist() == [-4.5]


def test_nothing_has_no_front():
    assert front_mask([]).shape == (0,)
    assert ranks(np.zeros((0, 2))).shape == (0,)
    assert hypervolume([], [1, 1]) == 0
    with pytest.raises(ValueError, match="at least one"):
        reference_point([])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("function", [front_mask, ranks, reference_point])
def test_what_cannot_be_compared_is_rejected(function, bad):
    with pytest.raises(ValueError, match="finite"):
        function([[1.0, bad], [1.0, 2.0]])


def test_one_row_is_not_points():
    with pytest.raises(ValueError, match="shape"):
        front_mask([1.0, 2.0])


@given(POINTS)
def test_front_and_ranks_are_those_of_the_naive_twin(points):
    assert (front_mask(points) == naive_front(points)).all()
    assert (ranks(points) == naive_ranks(points)).all()


@given(POINTS)
def test_no_point_of_the_front_is_dominated_and_every_other_is(points):
    mask = front_mask(points)
    front = points[mask]
    assert not any(dominates(a, b) for a in points for b in front)
    assert all(any(dominates(a, b) for a in front) for b in points[~mask])


@given(POINTS, st.randoms(use_true_random=False))
def test_order_does_not_matter(points, random):
    order = list(range(len(points)))
    random.shuffle(order)
    assert (front_mask(points)[order] == front_mask(points[order])).all()
    assert (ranks(points)[order] == ranks(points[order])).all()
    reference = reference_point(points)
    assert hypervolume(points, reference) == pytest.approx(hypervolume(points[order], reference))


@given(POINTS)
def test_hypervolume_grows_with_every_point_and_is_that_of_the_front(points):
    reference = reference_point(points)
    volumes = [hypervolume(points[:count], reference) for count in range(1, len(points) + 1)]
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(volumes))
    assert volumes[0] > 0
    assert hypervolume(points[front_mask(points)], reference) == pytest.approx(volumes[-1])
