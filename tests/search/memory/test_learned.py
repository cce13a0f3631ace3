import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InputError
from search.memory.learned import LearnedMemory, Observation

DIMENSIONS = ("batch_size", "width")
SIZES = st.integers(1, 8)


def at(batch_size, width, **others):
    return {"batch_size": batch_size, "width": width, **others}


def took(num_bytes, batch_size, width, **others):
    return Observation(params=at(batch_size, width, **others), num_bytes=num_bytes)


def ran_out(num_bytes, batch_size, width, **others):
    return Observation(params=at(batch_size, width, **others), num_bytes=num_bytes, ran_out=True)


def learned(*observations, **options):
    return LearnedMemory(DIMENSIONS, observations, **options)


def dominates(one, other):
    return all(one[name] >= other[name] for name in DIMENSIONS)


def true_bytes(params):
    return 1000 + 7 * params["width"] ** 2 + 5 * params["batch_size"] * params["width"]


@st.composite
def histories(draw, budget=None):
    """Runs of a function whose memory never falls; those beyond the budget ran out of it."""
    budget = draw(st.integers(1000, 1800)) if budget is None else budget
    places = draw(st.lists(st.tuples(SIZES, SIZES), max_size=14))
    runs = []
    for batch_size, width in places:
        needed = true_bytes(at(batch_size, width))
        runs.append((ran_out if needed > budget else took)(min(needed, budget), batch_size, width))
    return runs


class TestEstimate:
    def test_lies_between_what_it_dominates_and_what_dominates_it(self):
        memory = learned(took(100, 2, 2), took(150, 3, 2), took(400, 6, 6), took(300, 5, 7))
        found = memory.estimate(at(4, 4))
        assert (found.low_bytes, found.high_bytes) == (150, 300)
        assert 150 <= found.expected_bytes <= 300

    def test_has_no_upper_bound_beyond_what_ran(self):
        found = learned(took(100, 2, 2)).estimate(at(4, 4))
        assert (found.low_bytes, found.high_bytes) == (100, None)
        assert found.expected_bytes > 100

    def test_is_what_was_measured_where_it_was(self):
        found = learned(took(100, 2, 2), took(700, 4, 4)).estimate(at(2, 2))
        assert (found.low_bytes, found.expected_bytes, found.high_bytes) == (100, 100, 100)

    def test_holds_both_of_two_runs_of_one_place(self):
        found = learned(took(103, 2, 2), took(100, 2, 2)).estimate(at(2, 2))
        assert (found.low_bytes, found.high_bytes) == (100, 103)

    def test_more_was_needed_than_what_ran_out(self):
        found = learned(took(100, 2, 2), ran_out(500, 4, 4)).estimate(at(4, 5))
        assert (found.low_bytes, found.high_bytes) == (501, None)
        assert found.expected_bytes >= 501

    def test_what_ran_out_pulls_the_guess_up_below_it_too(self):
        runs = (took(100, 1, 2), took(110, 2, 2))
        before = learned(*runs).estimate(at(4, 2)).expected_bytes
        after = learned(*runs, ran_out(900, 8, 2)).estimate(at(4, 2)).expected_bytes
        assert after > before

    def test_knows_something_where_all_ran_out(self):
        found = learned(ran_out(500, 4, 4)).estimate(at(2, 2))
        assert found.low_bytes == 0
        assert 0 < found.expected_bytes <= 501

    def test_is_nothing_where_nothing_ran(self):
        assert learned().estimate(at(2, 2)) is None

    def test_learns_a_sum_of_products(self):
        places = [(1, 1), (1, 4), (4, 1), (4, 4), (2, 8), (8, 2), (8, 8), (2, 2)]
        memory = learned(*(took(true_bytes(at(*place)), *place) for place in places))
        found = memory.estimate(at(16, 12))
        assert found.expected_bytes == pytest.approx(true_bytes(at(16, 12)), rel=0.02)

    @given(runs=histories(), place=st.tuples(SIZES, SIZES))
    def test_its_bounds_hold_where_memory_never_falls(self, runs, place):
        found = learned(*runs).estimate(at(*place))
        if found is not None:
            assert found.low_bytes <= true_bytes(at(*place))
            assert found.high_bytes is None or true_bytes(at(*place)) <= found.high_bytes


class TestRuledOut:
    def test_is_what_dominates_one_that_ran_out(self):
        memory = learned(ran_out(500, 4, 4))
        assert memory.ruled_out_by(at(4, 4)) == ran_out(500, 4, 4)
        assert memory.ruled_out_by(at(5, 4))
        assert memory.ruled_out_by(at(8, 3)) is None

    def test_tells_of_the_run_that_had_the_most(self):
        memory = learned(ran_out(500, 4, 4), ran_out(600, 3, 3), ran_out(550, 2, 2))
        assert memory.ruled_out_by(at(4, 4)).num_bytes == 600

    def test_a_larger_run_that_took_less_contradicts(self):
        runs = (ran_out(500, 4, 4), took(499, 5, 5))
        assert learned(*runs).ruled_out_by(at(4, 4)) is None
        assert learned(*runs).estimate(at(4, 4)).low_bytes == 0
        assert learned(ran_out(500, 4, 4), took(501, 5, 5)).ruled_out_by(at(4, 4))

    @given(runs=histories(budget=1200), place=st.tuples(SIZES, SIZES))
    def test_one_that_ran_out_rules_out_all_that_dominate_it_and_no_others(self, runs, place):
        found = learned(*runs).ruled_out_by(at(*place))
        expected = [run for run in runs if run.ran_out and dominates(at(*place), run.params)]
        assert (found is not None) == bool(expected)
        if found:
            assert true_bytes(at(*place)) > 1200


class TestCategories:
    def test_say_nothing_of_each_other(self):
        memory = learned(took(100, 2, 2, precision="fp32"), ran_out(50, 1, 1, precision="bf16"))
        assert memory.estimate(at(2, 2, precision="fp32")).high_bytes == 100
        assert memory.ruled_out_by(at(2, 2, precision="fp32")) is None
        assert memory.ruled_out_by(at(2, 2, precision="bf16"))
        assert memory.estimate(at(2, 2, precision="tf32")) is None

    def test_true_is_not_1(self):
        memory = learned(took(100, 2, 2, layers=1))
        assert memory.estimate(at(2, 2, layers=True)) is None

    @pytest.mark.parametrize("others", [{"learning_rate": 0.1}, {"learning_rate": 0.2, "seed": 4}])
    def test_real_numbers_and_what_is_neutral_are_none(self, others):
        memory = learned(took(100, 2, 2, learning_rate=0.1, seed=3), neutral=["seed"])
        assert memory.estimate(at(2, 2, **others)).high_bytes == 100


class TestOrder:
    def test_is_from_small_to_large(self):
        candidates = [at(8, 8), at(1, 8), at(1, 1), at(8, 1), at(4, 4)]
        assert learned().order(candidates) == (2, 1, 3, 4, 0)

    def test_dimensions_weigh_alike(self):
        # ranks 0, 1, 2 of 2 for the batch, 0 and 1 of 1 for the width
        candidates = [at(1, 4096), at(2, 64), at(4, 64), at(1, 64)]
        assert learned().order(candidates) == (3, 1, 0, 2)

    def test_of_nothing_is_nothing(self):
        assert learned().order([]) == ()

    @given(places=st.lists(st.tuples(SIZES, SIZES), max_size=20))
    def test_none_stands_before_one_that_it_dominates(self, places):
        candidates = [at(*place) for place in places]
        order = learned().order(candidates)
        assert sorted(order) == list(range(len(places)))
        for first, second in itertools.combinations([candidates[place] for place in order], 2):
            assert first == second or not dominates(first, second)


def test_dimensions_are_told_apart_by_one_run_for_each_and_two_more():
    runs = [took(100 + n, n, 1, precision="fp32") for n in range(1, 5)]
    assert not learned(*runs[:3]).tells_apart(at(9, 9, precision="fp32"))
    assert learned(*runs).tells_apart(at(9, 9, precision="fp32"))
    assert not learned(*runs).tells_apart(at(9, 9, precision="bf16"))


@pytest.mark.parametrize("bad", ["8", None, True, -1, float("nan"), float("inf")])
def test_a_declared_dimension_must_be_a_number_from_0(bad):
    with pytest.raises(InputError, match=r"width: .* must be a number from 0, found"):
        learned().estimate(at(1, bad))
    with pytest.raises(InputError, match="declare only dimensions in which memory grows"):
        learned(took(1, 1, bad))


def test_a_declared_dimension_must_be_there():
    with pytest.raises(InputError, match=r"width: .* found nothing"):
        learned().order([{"batch_size": 1}])
