import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.samples import in_order, split_by_name, training_order
from search.errors import InputError

NAMES = [f"image {index}" for index in range(50)]


def order(samples=range(7), **wanted) -> list[int]:
    wanted = {"num_samples": 3, "num_tokens": None, "seed": 0} | wanted
    batches = training_order(np.array(samples), **wanted)
    return [int(index) for batch in batches for index in batch]


class TestSplit:
    def test_holds_out_a_fifth_at_most(self):
        train, held_out = split_by_name("here", NAMES, 1_000)
        assert (len(train), len(held_out)) == (40, 10)
        assert sorted([*train, *held_out]) == list(range(50))

    def test_holds_out_no_more_than_asked_and_the_same_ones(self):
        held_out = split_by_name("here", NAMES, 1_000)[1]
        fewer = split_by_name("here", NAMES, 3)[1]
        assert len(fewer) == 3
        assert set(fewer) < set(held_out)

    def test_does_not_depend_on_the_order_of_the_samples(self):
        held_out = {NAMES[index] for index in split_by_name("here", NAMES, 10)[1]}
        turned = NAMES[::-1]
        assert {turned[index] for index in split_by_name("here", turned, 10)[1]} == held_out

    def test_what_is_there_twice_is_on_one_side(self):
        names = NAMES * 2
        train, held_out = split_by_name("here", names, 1_000)
        assert not {names[index] for index in train} & {names[index] for index in held_out}

    def test_too_few_are_refused(self):
        with pytest.raises(InputError, match="here: too few to be split, found 9 different"):
            split_by_name("here", [*NAMES[:9], NAMES[0]], 10)

    def test_nothing_to_be_judged_on_is_refused(self):
        with pytest.raises(InputError, match="held_out_samples must be at least 1, found 0"):
            split_by_name("here", NAMES, 0)


class TestTrainingOrder:
    @given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 40), st.integers(0, 2**32))
    def test_does_not_depend_on_how_many_make_a_batch(self, one, other, num_tokens, seed):
        found = [order(num_samples=size, num_tokens=num_tokens, seed=seed) for size in (one, other)]
        assert found[0] == found[1]
        assert len(found[0]) == num_tokens

    def test_is_full_batches_then_fewer(self):
        batches = training_order(np.arange(7), num_samples=3, num_tokens=10, seed=0)
        assert [len(batch) for batch in batches] == [3, 3, 3, 1]

    def test_meets_each_once_before_any_again(self):
        found = order(num_tokens=21)
        assert [sorted(found[at : at + 7]) for at in (0, 7, 14)] == [list(range(7))] * 3
        assert found[:7] != found[7:14]

    def test_depends_on_the_seed(self):
        assert order(range(50)) != order(range(50), seed=1)

    def test_without_a_number_of_tokens_each_is_met_once(self):
        assert sorted(order(range(10, 17))) == list(range(10, 17))


def test_in_order_each_is_met_once():
    batches = list(in_order(np.array([4, 1, 9, 2]), num_samples=3))
    assert [batch.tolist() for batch in batches] == [[4, 1, 9], [2]]
