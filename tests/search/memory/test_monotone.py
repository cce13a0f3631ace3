"""Properties of bounds and guesses, over runs that may contradict each other, as real ones do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from search.memory.monotone import Runs

SIZES = st.integers(0, 8)
PLACES = st.tuples(SIZES, SIZES)
HISTORIES = st.lists(
    st.tuples(PLACES, st.integers(1, 2000), st.booleans()), min_size=1, max_size=14
)
"""Each run: where, its bytes, whether it ran out of them."""


def runs_of(history) -> Runs:
    places, num_bytes, ran_out = zip(*history, strict=True)
    return Runs(
        points=np.array(places, dtype=np.float64),
        num_bytes=np.array(num_bytes, dtype=np.float64),
        ran_out=np.array(ran_out),
    )


def dominates(one, other):
    return all(mine >= others for mine, others in zip(one, other, strict=True))


def believed(history):
    """What ran out, without what a run that is nowhere smaller contradicts by taking no more."""
    return [
        (place, bound)
        for place, bound, ran_out in history
        if ran_out
        and not any(
            dominates(larger, place) and num_bytes <= bound
            for larger, num_bytes, too in history
            if not too
        )
    ]


@given(history=HISTORIES, place=PLACES)
def test_the_bounds_are_those_of_a_naive_twin(history, place):
    measured = [(where, num_bytes) for where, num_bytes, ran_out in history if not ran_out]
    below = max(
        [num_bytes for where, num_bytes in measured if dominates(place, where)]
        + [bound + 1 for where, bound in believed(history) if dominates(place, where)],
        default=0,
    )
    above = min(
        [num_bytes for where, num_bytes in measured if dominates(where, place)], default=None
    )
    found = runs_of(history).estimate(place)
    if above is None:
        assert (found.low_bytes, found.high_bytes) == (below, None)
    else:
        assert (found.low_bytes, found.high_bytes) == (min(below, above), max(below, above))


@given(history=HISTORIES, place=PLACES, more=PLACES)
def test_nothing_ever_falls(history, place, more):
    runs = runs_of(history)
    small = runs.estimate(place)
    large = runs.estimate(np.add(place, more))
    assert small.low_bytes <= large.low_bytes
    assert small.expected_bytes <= large.expected_bytes
    if large.high_bytes is not None:
        assert small.high_bytes <= large.high_bytes


@given(history=HISTORIES, place=PLACES)
def test_what_is_expected_lies_between_the_bounds(history, place):
    found = runs_of(history).estimate(place)
    assert 0 <= found.low_bytes <= found.expected_bytes
    assert found.high_bytes is None or found.expected_bytes <= found.high_bytes


@given(history=HISTORIES)
def test_the_bounds_hold_everything_that_was_measured(history):
    runs = runs_of(history)
    for place, num_bytes, ran_out in history:
        found = runs.estimate(place)
        if not ran_out:
            assert found.low_bytes <= num_bytes <= found.high_bytes


@given(history=HISTORIES, place=PLACES)
def test_all_that_dominates_one_that_ran_out_is_ruled_out_and_nothing_else(history, place):
    index = runs_of(history).ruled_out_by(place)
    by = [bound for where, bound in believed(history) if dominates(place, where)]
    assert (index is not None) == bool(by)
    if by:
        assert history[index][2]
        assert history[index][1] == max(by)
