from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.choice.knee import knee_order
from search.pareto import front_mask

POINTS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=15
)


def front(points):
    array = np.unique(np.array(points, dtype=float), axis=0)
    return array[front_mask(array)]


def test_the_bend_by_hand():
    # Scaled: (0,1), (0.1,0.3), (0.5,0.2), (1,0).
    # Distances from x+y=1 times sqrt(2): 0, 0.6, 0.3, 0.
    order, bends = knee_order([[0, 10], [1, 3], [5, 2], [10, 0]])
    assert bends
    assert order[:2] == [1, 2]


def test_three_metrics_by_hand():
    # The extremes are the unit points; (0.2,0.2,0.2) lies farthest below x+y+z=1.
    order, bends = knee_order([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0.2, 0.2, 0.2]])
    assert bends
    assert order[0] == 3


@pytest.mark.parametrize(
    ("points", "first"),
    [
        ([[3, 3]], 0),
        ([[0, 5], [5, 0]], 0),
        ([[0, 10], [5, 5], [10, 0]], 1),  # straight: the middle gives up least
        ([[0, 10], [7, 9], [10, 0]], 1),  # bulges away: 0.9 at worst beats 1
        ([[1, 2, 7], [2, 1, 7]], 0),  # no spread in the last metric
        ([[1, 1], [1, 1]], 0),
    ],
)
def test_fronts_without_a_knee(points, first):
    order, bends = knee_order(points)
    assert not bends
    assert order[0] == first
    assert sorted(order) == list(range(len(points)))


@given(POINTS)
def test_units_do_not_matter(points):
    array = front(points)
    order, bends = knee_order(array)
    assert knee_order(array * [8, 2, 0.5] + [16, -4, 1]) == (order, bends)


@given(POINTS, st.randoms(use_true_random=False))
def test_order_does_not_matter(points, random):
    array = front(points)
    shuffled = list(range(len(array)))
    random.shuffle(shuffled)
    again, _ = knee_order(array[shuffled])
    assert [shuffled[index] for index in again] == knee_order(array)[0]


@given(POINTS)
def test_a_knee_of_two_metrics_is_no_extreme(points):
    array = front([point[:2] for point in points])
    order, bends = knee_order(array)
    assert not bends or (array[order[0]] > array.min(axis=0)).all()
