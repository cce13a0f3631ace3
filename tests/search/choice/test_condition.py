from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.choice.condition import Comparison, Condition, parse_condition
from search.errors import InputError
from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import Outcome, Trial
from search.units import GIB

LOSS = Metric(name="val_loss", goal=Goal.MIN)
METRICS = (LOSS, TOKENS_PER_SECOND, PEAK_MEMORY)
PARAMS = ("precision", "batch_size", "checkpointing", "learning_rate")


def parse(text):
    return parse_condition(text, METRICS, PARAMS)


def trial(params=None, **metrics):
    return Trial(number=0, params=params or {}, outcome=Outcome.COMPLETED, metrics=metrics)


@pytest.mark.parametrize(
    ("text", "name", "comparison", "value"),
    [
        ("peak_memory <= 20 GiB", "peak_memory", Comparison.AT_MOST, 20 * GIB),
        ("peak_memory<=20GiB", "peak_memory", Comparison.AT_MOST, 20 * GIB),
        ("  tokens_per_second >= 8k ", "tokens_per_second", Comparison.AT_LEAST, 8000.0),
        ("tokens_per_second > 8_000 tokens/s", "tokens_per_second", Comparison.ABOVE, 8000.0),
        ("val_loss < 2.5e0", "val_loss", Comparison.BELOW, 2.5),
        ("precision = bf16-mixed", "precision", Comparison.EQUAL, "bf16-mixed"),
        ("precision != '32-true'", "precision", Comparison.UNEQUAL, "32-true"),
        ("batch_size == 32", "batch_size", Comparison.EQUAL, 32),
        ("checkpointing == true", "checkpointing", Comparison.EQUAL, True),
        ("learning_rate <= 1e-3", "learning_rate", Comparison.AT_MOST, 1e-3),
    ],
)
def test_what_people_write(text, name, comparison, value):
    found = parse(text)
    assert (found.name, found.comparison, found.value) == (name, comparison, value)
    assert type(found.value) is type(value) or name == "peak_memory"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("peak_memory", "is no condition"),
        ("<= 3", "is no condition"),
        ("peak_memory <=", "is no condition"),
        ("peek_memory <= 1 GiB", "did you mean 'peak_memory'"),
        ("precison == fp32", "did you mean 'precision'"),
        ("peak_memory <= 3 s", "not a unit of memory"),
        ("peak_memory <= much", "not a number"),
        ("precision <= bf16-mixed", "has no order"),
        ("checkpointing > true", "has no order"),
    ],
)
def test_what_cannot_be_asked(text, says):
    with pytest.raises(InputError, match=says):
        parse(text)


def test_a_condition_reads_like_what_was_asked():
    assert str(parse("peak_memory<=21474836480")) == "peak_memory <= 20 GiB"
    assert str(parse("precision==bf16-mixed")) == "precision == bf16-mixed"


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_comparisons_are_those_of_numbers(value, bound):
    expected = {
        Comparison.AT_MOST: value <= bound,
        Comparison.AT_LEAST: value >= bound,
        Comparison.BELOW: value < bound,
        Comparison.ABOVE: value > bound,
    }
    for comparison, holds in expected.items():
        condition = Condition(name="val_loss", comparison=comparison, value=bound, metric=LOSS)
        found = trial(val_loss=value)
        assert condition.holds(found) is holds
        assert (condition.shortfall(found) == 0) is (holds or value == bound)


def test_what_a_trial_does_not_have_never_satisfies():
    for text in ("val_loss <= 1", "val_loss != 1", "batch_size >= 1"):
        assert not parse(text).holds(trial())


def test_words_and_numbers_are_equal_only_to_their_like():
    params = {"precision": "bf16-mixed", "batch_size": 32, "checkpointing": True}
    held = trial(params)
    assert parse("precision == bf16-mixed").holds(held)
    assert not parse("precision != bf16-mixed").holds(held)
    assert parse("batch_size == 32.0").holds(held)
    assert parse("checkpointing == true").holds(held)
    assert not parse("checkpointing == 1").holds(held)


def test_the_shortfall_is_a_share_of_the_bound():
    assert parse("val_loss <= 2").shortfall(trial(val_loss=2.5)) == 0.25
    assert parse("val_loss <= 2").shortfall(trial()) == 1
    assert parse("val_loss <= 0").shortfall(trial(val_loss=0.5)) == 0.5
    assert parse("precision == fp32").shortfall(trial({"precision": "bf16-mixed"})) == 1
