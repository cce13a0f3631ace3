import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import pytest

from search.errors import InputError
from search.optimizers import Optimizer
from search.sweep.dimensions import (
    build,
    default_params,
    dimension_types,
    objective_group,
    plain_value,
    training_group,
)
from search.training_params import Precision, TrainingParams


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Declared:
    size: int
    colour: Colour = Colour.RED
    rate: float | None = None
    mode: int | Literal["all"] = "all"


class Thing:
    parameters = Declared


@pytest.mark.parametrize(
    ("declared", "value", "kept"),
    [
        (int, 8, 8),
        (int, 8.0, 8),
        (float, 8, 8.0),
        (bool, True, True),
        (str, "no", "no"),
        (float | None, None, None),
        (float | None, 2, 2.0),
        (int | Literal["all"], "all", "all"),
        (int | Literal["all"], 3, 3),
        (Colour, "blue", "blue"),
        (Precision, "fp32", "32-true"),
        (Optimizer, "sgd", "sgd"),
    ],
)
def test_a_value_is_kept_in_its_declared_type(declared, value, kept):
    plain = plain_value(declared, value)
    assert plain == kept
    assert type(plain) is type(kept)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (int, 8.5),
        (int, True),
        (int, "8"),
        (float, "1e-3"),
        (float, math.inf),
        (bool, 1),
        (bool, "yes"),
        (str, 3),
        (float, None),
        (Literal[1, 2], True),
        (Colour, "green"),
        (Colour, 1),
        (list, 1),
    ],
)
def test_a_value_of_another_type_is_refused(declared, value):
    with pytest.raises(ValueError, match=r"^must be .*, found "):
        plain_value(declared, value)


def test_defaults_are_those_of_training_and_of_the_objective():
    defaults = default_params(Thing)
    assert defaults["learning_rate"] == TrainingParams().learning_rate
    assert type(defaults["precision"]) is str
    assert {name: defaults[name] for name in ("colour", "rate", "mode")} == {
        "colour": "red",
        "rate": None,
        "mode": "all",
    }
    assert "size" not in defaults


def test_the_groups_are_two_dataclasses():
    assert training_group() is TrainingParams
    assert list(dimension_types(objective_group(Thing))) == ["size", "colour", "rate", "mode"]


def test_types_that_cannot_be_read_are_told():
    @dataclass
    class Unreadable:
        size: "Nowhere"  # noqa: F821 - the fault under test

    class Other:
        parameters = Unreadable

    with pytest.raises(InputError, match="'Nowhere' is not defined"):
        objective_group(Other)


def test_a_group_is_built_with_its_own_enums():
    build(TrainingParams, {"precision": "fp32", "optimizer": "sgd", "unrelated": 1})
    with pytest.raises(ValueError, match="does not divide"):
        build(TrainingParams, {"batch_size": 8, "micro_batch_size": 3})
