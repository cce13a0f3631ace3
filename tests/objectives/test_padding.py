from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.padding import padded, sample_order

LENGTHS = np.random.default_rng(0).integers(1, 50, size=97)


def order_of(count: int, **changed) -> list[int]:
    asked = {"first": (5, 3), "batch_size": 8, "bucketing": 1, "seed": 0, **changed}
    return list(islice(sample_order(LENGTHS, **asked), count))


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 99))
def test_each_sample_comes_once_before_any_comes_again(batch_size, bucketing, seed):
    # what is sorted together may reach into the next round
    pool = batch_size * bucketing if bucketing > 1 else 1
    found = order_of(97 * 4, batch_size=batch_size, bucketing=bucketing, seed=seed)
    whole = batch_size + (97 * 2 - batch_size) // pool * pool
    counts = np.bincount(found[:whole], minlength=97)
    assert counts.max() <= 2 + (whole % 97 > 0)
    assert np.bincount(order_of(97)).tolist() == [1] * 97


@pytest.mark.parametrize("bucketing", [1, 4])
@pytest.mark.parametrize("first", [(5, 3), (5, 5)])
def test_the_longest_come_first(bucketing, first):
    expected = list(dict.fromkeys(first))
    assert order_of(len(expected), first=first, bucketing=bucketing) == expected


@pytest.mark.parametrize("bucketing", [1, 4])
def test_the_order_depends_on_the_seed_alone(bucketing):
    assert order_of(300, bucketing=bucketing) == order_of(300, bucketing=bucketing)
    assert order_of(300, bucketing=bucketing) != order_of(300, bucketing=bucketing, seed=1)


def test_without_bucketing_it_does_not_depend_on_the_batch_size():
    assert order_of(300, batch_size=8) == order_of(300, batch_size=13)


def num_padded(bucketing: int) -> int:
    batches = LENGTHS[order_of(97 * 8 * 4, bucketing=bucketing)].reshape(-1, 8)
    return int((batches.max(axis=1, keepdims=True) - batches).sum())


def test_more_batches_sorted_together_need_less_padding():
    needed = [num_padded(bucketing) for bucketing in (1, 2, 4, 16)]
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] < needed[0] / 4


def test_batches_of_a_bucket_come_in_no_order_of_length():
    means = LENGTHS[order_of(8 * 17, bucketing=16)].reshape(-1, 8)[1:].mean(axis=1)
    assert not (np.diff(means) >= 0).all()
    assert sorted(means) != means.tolist()


def test_rows_are_filled_up_at_their_ends():
    rows = [np.array([1, 2, 3]), np.array([4]), np.array([], dtype=np.int64)]
    assert padded(rows, 9).tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9]]
