from dataclasses import dataclass
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from search.sweep.combinations import candidates, combinations, group_faults


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Refuses what a table says, in words that name both values."""

    a: int = 0
    b: int = 0

    def __post_init__(self):
        if (self.a, self.b) in Pair.refused:
            msg = f"a {self.a} does not go with b {self.b}"
            raise ValueError(msg)


TYPES = {"a": int, "b": int}
values = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True)
tables = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)))


def _faults(space, fixed):
    known = candidates(space, fixed, TYPES)
    return list(group_faults(Pair, known, combinations(Pair, known)))


@given(values, values, tables)
def test_there_are_faults_exactly_when_some_point_is_refused(a, b, refused):
    Pair.refused = refused
    faults = _faults({"a": a, "b": b}, {})
    assert bool(faults) == any(pair in refused for pair in product(a, b))


@given(values, st.integers(0, 4), tables)
def test_a_value_refused_beside_what_is_fixed_is_told_at_its_place(a, b, refused):
    Pair.refused = refused
    faults = _faults({"a": a}, {"b": b})
    told = {fault.message for fault in faults if fault.place == "space.a"}
    assert told == {f"{each} does not go with b {b}" for each in a if (each, b) in refused}


def test_values_that_work_somewhere_are_told_as_a_combination():
    Pair.refused = {(1, 2)}
    (fault,) = _faults({"a": [1, 3], "b": [2, 4]}, {})
    assert fault.place == "space"
    assert "a 1 does not go with b 2, for example at a 1, b 2; 1 of 4" in fault.message
