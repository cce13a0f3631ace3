import optuna
from hypothesis import given
from hypothesis import strategies as st

from search.sweep.space import Space
from search.trials import domains

MIXED = Space.model_validate(
    {
        "kind": [1, True, "1", 2.5, None],
        "flag": [False, True],
        "rate": {"low": 1e-5, "high": 1e-1, "log": True},
        "dropout": {"low": 0.0, "high": 0.35, "step": 0.1},
        "depth": {"low": 1, "high": 8, "step": 3},
        "width": {"low": 8, "high": 512, "log": True},
    }
)


@given(seed=st.integers(0, 2**31))
def test_every_draw_is_a_point_of_the_space_and_back(seed):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    drawn = study.ask(domains.distributions(MIXED)).params
    point = domains.point(MIXED, drawn)
    assert MIXED.contains(point)
    assert domains.point(MIXED, domains.draw(MIXED, point)) == point


def test_every_point_of_a_finite_space_has_its_draw():
    space = Space.model_validate(
        {"kind": [1, True, "1"], "dropout": {"low": 0.0, "high": 0.3, "step": 0.1}}
    )
    points = list(space.points())
    for point in points:
        back = domains.point(space, domains.draw(space, point))
        assert [(value, type(value)) for value in back.values()] == [
            (value, type(value)) for value in point.values()
        ]
    assert len({domains.key(point) for point in points}) == space.num_points() == 12


def test_keys_tell_kinds_apart_but_not_rounding_errors():
    assert len({domains.key({"a": value}) for value in (1, True, "1", 1.5)}) == 4
    assert domains.key({"a": 0.1 + 0.2}) == domains.key({"a": 0.3})
    assert domains.key({"a": 1, "b": 2}) == domains.key({"b": 2, "a": 1})


def test_a_stepped_range_ends_at_its_last_whole_step():
    stepped = domains.distribution(MIXED["dropout"])
    assert (stepped.low, stepped.high) == (0.0, 0.3)
    assert domains.distribution(MIXED["depth"]).high == 7
