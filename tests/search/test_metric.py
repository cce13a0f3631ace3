from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, oriented_values


@given(st.floats(allow_nan=False))
def test_orienting_twice_gives_the_value_back(value):
    for metric in (PEAK_MEMORY, TOKENS_PER_SECOND):
        assert metric.oriented(metric.oriented(value)) == value


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_lower_is_better_once_oriented(first, second):
    assert (PEAK_MEMORY.oriented(first) < PEAK_MEMORY.oriented(second)) == (first < second)
    assert (TOKENS_PER_SECOND.oriented(first) < TOKENS_PER_SECOND.oriented(second)) == (
        first > second
    )


def test_oriented_values_follow_the_metrics():
    values = {"tokens_per_second": 5.0, "peak_memory": 3.0, "bits_per_byte": 2.0}
    assert oriented_values((PEAK_MEMORY, TOKENS_PER_SECOND), values) == (3.0, -5.0)


def test_a_missing_metric_gives_no_values():
    assert oriented_values((PEAK_MEMORY,), {"tokens_per_second": 5.0}) is None
