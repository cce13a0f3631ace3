import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from search.sweep.space import Choices, FloatRange, IntRange, Space

lows = st.integers(-1000, 1000)
spans = st.integers(1, 200)


def test_a_list_is_a_choice_and_bounds_make_a_range():
    space = Space.model_validate(
        {"a": ["x", 1, True], "b": {"low": 1, "high": 8}, "c": {"low": 1, "high": 8.5}}
    )
    assert [type(space[name]) for name in space] == [Choices, IntRange, FloatRange]


def test_it_reads_like_a_mapping_in_the_order_of_the_file():
    space = Space({"b": Choices((1, 2)), "a": Choices(("x",))})
    assert list(space) == ["b", "a"] == list(space.keys())
    assert "a" in space
    assert "c" not in space
    assert len(space) == 2
    assert dict(space.items()) == {"b": space["b"], "a": space["a"]}


def test_it_knows_what_is_drawn_on_a_log_scale():
    ranges = {"b": IntRange(low=1, high=8, log=True), "c": FloatRange(low=1, high=8)}
    assert Space({"a": Choices((1,)), **ranges}).log_names() == {"b"}


def test_points_are_the_product_the_last_dimension_fastest():
    space = Space({"a": Choices((1, 2)), "b": IntRange(low=0, high=4, step=2)})
    assert space.num_points() == 6
    assert [tuple(point.values()) for point in space.points()] == [
        *((1, 0), (1, 2), (1, 4)),
        *((2, 0), (2, 2), (2, 4)),
    ]


def test_a_continuous_dimension_has_no_points_to_list():
    space = Space({"rate": FloatRange(low=0, high=1), "a": Choices((1,))})
    assert space.num_points() is None
    with pytest.raises(ValueError, match="rate is continuous"):
        space.points()


def test_a_grid_of_decimals_has_the_decimals_people_mean():
    # 0.1 + 2 * 0.1 is 0.30000000000000004 in floating point
    assert FloatRange(low=0.1, high=0.45, step=0.1).values() == (0.1, 0.2, 0.3, 0.4)


def test_a_huge_range_costs_nothing():
    huge = IntRange(low=1, high=10**30)
    assert huge.num_values() == 10**30
    assert huge.contains(10**29)


@given(lows, spans, st.integers(1, 50))
def test_whole_ranges_contain_exactly_their_values(low, span, step):
    dimension = IntRange(low=low, high=low + span, step=min(step, span))
    values = dimension.values()
    assert len(values) == dimension.num_values()
    around = range(low - 2, low + span + 3)
    assert [value for value in around if dimension.contains(value)] == list(values)
    assert [dimension.at(index) for index in range(len(values))] == list(values)


@given(lows, spans, st.integers(1, 100))
def test_stepped_ranges_contain_their_values_and_none_between(low, span, tenths):
    step = min(tenths / 10, span)
    dimension = FloatRange(low=low, high=low + span, step=step)
    values = dimension.values()
    assert len(values) == dimension.num_values()
    assert all(dimension.contains(value) for value in values)
    assert not any(dimension.contains(value + step / 2) for value in values)
    assert low <= values[-1] <= low + span < values[-1] + step + 1e-9


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_continuous_ranges_contain_their_ends_and_nothing_outside(low, span):
    dimension = FloatRange(low=low, high=low + span)
    assert dimension.contains(dimension.low)
    assert dimension.contains(dimension.high)
    assert not dimension.contains(math.nextafter(dimension.low, -math.inf))
    assert not dimension.contains(math.nextafter(dimension.high, math.inf))


def test_true_is_no_number():
    assert Choices((True, 0)).contains(True)  # noqa: FBT003 - the value under test
    assert not Choices((1, 2)).contains(True)  # noqa: FBT003 - the same
    assert not IntRange(low=0, high=3).contains(True)  # noqa: FBT003 - the same
    assert not FloatRange(low=0, high=3).contains(True)  # noqa: FBT003 - the same
    assert not FloatRange(low=0, high=3).contains("1")


def test_a_point_belongs_to_its_space_alone():
    space = Space({"a": Choices((1, 2)), "b": IntRange(low=0, high=4)})
    assert space.contains({"a": 1, "b": 3})
    assert not space.contains({"a": 1})
    assert not space.contains({"a": 1, "b": 5})
    assert not space.contains({"a": 1, "b": 3, "c": 0})


def test_it_comes_back_from_json():
    space = Space(
        {
            "a": Choices(("x", 1, 1.5, True, None)),
            "b": IntRange(low=1, high=8, log=True),
            "c": FloatRange(low=1, high=8),
            "d": FloatRange(low=0, high=1, step=0.25),
        }
    )
    assert Space.model_validate_json(space.model_dump_json()) == space


@pytest.mark.parametrize(
    "bad",
    [
        {"low": 2, "high": 1},
        {"low": 1, "high": 1},
        {"low": 0, "high": 1, "log": True},
        {"low": 1, "high": 4, "step": 0},
        {"low": 1, "high": 4, "step": 9},
        {"low": 1, "high": 9, "step": 2, "log": True},
        {"low": 0.1, "high": 0.9, "step": 0.2, "log": True},
        {"low": 0.0, "high": math.inf},
        {"low": 0.0, "high": math.nan},
        [],
        [8, 8],
        [[8]],
        8,
        None,
    ],
)
def test_what_makes_no_dimension_is_refused(bad):
    with pytest.raises(ValidationError):
        Space.model_validate({"x": bad})


def test_an_empty_space_is_refused():
    with pytest.raises(ValidationError):
        Space({})
