from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.choice.condition import parse_condition
from search.choice.pick import pick, repicked
from search.errors import InputError
from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import Outcome, Trial
from search.units import GIB

LOSS = Metric(name="loss", goal=Goal.MIN)
PAIR = (LOSS, TOKENS_PER_SECOND)
ALL = (*PAIR, PEAK_MEMORY)


def trial(number, loss, speed, gib=1.0, outcome=Outcome.COMPLETED):
    metrics = {"loss": loss, "tokens_per_second": speed, "peak_memory": gib * GIB}
    return Trial(number=number, params={"precision": "32-true"}, outcome=outcome, metrics=metrics)


def where(*texts):
    return [parse_condition(text, ALL, ("precision",)) for text in texts]


# 0 is best in loss, 3 in speed, 1 bends the front, 2 is beaten by 1.
TRIALS = [
    trial(0, 1.0, 1000, gib=4),
    trial(1, 1.1, 4000, gib=3),
    trial(2, 1.2, 3000, gib=2),
    trial(3, 2.0, 5000, gib=1),
]


def test_the_knee_is_the_default():
    assert pick(TRIALS, PAIR) == pick(TRIALS, PAIR, knee=True)
    chosen = pick(TRIALS, PAIR)
    assert chosen.trial.number == 1
    assert "knee of the front of 3 trials" in chosen.reason
    assert [each.number for each in chosen.alternatives] == [0, 3]


@pytest.mark.parametrize(
    ("preference", "number", "says"),
    [
        ({"minimize": "loss"}, 0, "lowest loss (1) of the 4 completed trials"),
        ({"maximize": "tokens_per_second"}, 3, "highest tokens_per_second (5,000 tokens/s)"),
        ({"minimize": "peak_memory"}, 3, "lowest peak_memory (1 GiB)"),
    ],
)
def test_a_preference_is_followed(preference, number, says):
    chosen = pick(TRIALS, PAIR, metrics=ALL, **preference)
    assert chosen.trial.number == number
    assert says in chosen.reason


def test_the_reason_says_what_was_traded():
    reason = pick(TRIALS, PAIR, minimize="loss").reason
    assert "loss 1 is the best" in reason
    # 1000 of 5000 is 80 % less.
    assert (
        "tokens_per_second 1,000 tokens/s is 80 % below the best (5,000 tokens/s, trial 3)"
        in reason
    )


def test_conditions_narrow_the_choice_and_their_price_is_told():
    chosen = pick(TRIALS, PAIR, minimize="loss", where=where("peak_memory <= 2 GiB"))
    assert chosen.trial.number == 2
    assert "of the 2 of 4 completed trials that satisfy peak_memory <= 2 GiB" in chosen.reason
    assert "Without the conditions, trial 0 reaches 1." in chosen.reason
    assert chosen.conditions == ("peak_memory <= 2 GiB",)


def test_ties_go_to_the_other_objectives():
    tied = [trial(0, 1.0, 100), trial(1, 1.0, 300), trial(2, 1.0, 200)]
    assert pick(tied, PAIR, minimize="loss").trial.number == 1


def test_only_completed_trials_can_be_picked():
    lost = [
        trial(10 + i, 0.1, 9999, outcome=outcome)
        for i, outcome in enumerate(Outcome)
        if outcome is not Outcome.COMPLETED
    ]
    assert pick([*lost, *TRIALS], PAIR, minimize="loss").trial.number == 0
    with pytest.raises(InputError, match="1 out_of_memory"):
        pick(lost, PAIR)
    with pytest.raises(InputError, match="no trial has ended yet"):
        pick([], PAIR)


def test_one_trial_is_the_whole_front():
    chosen = pick(TRIALS[:1], PAIR)
    assert chosen.trial.number == 0
    assert "is the whole front" in chosen.reason
    assert chosen.alternatives == ()


def test_a_front_without_a_knee_says_so():
    assert "has no knee" in pick([TRIALS[0], TRIALS[3]], PAIR).reason


def test_when_nothing_satisfies_each_condition_counts_what_it_rules_out():
    with pytest.raises(InputError) as caught:
        pick(TRIALS, PAIR, where=where("peak_memory <= 2 GiB", "tokens_per_second >= 6k"))
    # Shares missed: 0: 1 + 5/6; 1: 1/2 + 1/3; 2: 0 + 1/2; 3: 0 + 1/6, the nearest.
    assert str(caught.value).splitlines() == [
        "none of the 4 completed trials satisfies all conditions",
        "  peak_memory <= 2 GiB rules out 2",
        "  tokens_per_second >= 6,000 tokens/s rules out 4",
        "  nearest miss: trial 3, tokens_per_second is 5,000 tokens/s, 17 % off",
    ]
    assert caught.value.exit_code == 2


def test_an_unknown_word_is_answered_with_what_there_is():
    with pytest.raises(InputError, match=r"rules out 4 \(there are 32-true\)"):
        pick(TRIALS, PAIR, where=where("precision == bf16-mixed"))
    with pytest.raises(InputError, match="did you mean 'bf16-mixed'"):
        where("precision == bf16-mixd")


def test_a_precision_may_be_called_by_its_short_name():
    assert pick(TRIALS, PAIR, where=where("precision == fp32")).trial in TRIALS


@pytest.mark.parametrize(
    ("preference", "says"),
    [
        ({"minimize": "los"}, "did you mean 'loss'"),
        ({"maximize": "loss"}, "use --minimize loss"),
        ({"minimize": "tokens_per_second"}, "use --maximize tokens_per_second"),
        ({"minimize": "loss", "maximize": "tokens_per_second"}, "give one of"),
        ({"minimize": "loss", "knee": True}, "give one of"),
    ],
)
def test_preferences_that_make_no_sense(preference, says):
    with pytest.raises(InputError, match=says):
        pick(TRIALS, PAIR, **preference)


def test_json_is_plain():
    found = json.loads(json.dumps(pick(TRIALS, PAIR, where=where("loss <= 1.5")).to_json()))
    assert found["trial"] == 0
    assert found["conditions"] == ["loss <= 1.5"]
    assert found["alternatives"] == [1]
    assert found["metrics"]["loss"] == 1.0


def test_a_pick_is_found_again_by_its_number():
    again = repicked(TRIALS, number=2, reason="because", conditions=["loss <= 2"])
    assert (again.trial, again.reason, again.conditions) == (TRIALS[2], "because", ("loss <= 2",))
    with pytest.raises(InputError, match="there is no trial 9"):
        repicked(TRIALS, number=9, reason="")
    with pytest.raises(InputError, match="did not complete: failed"):
        repicked([trial(0, 1, 1, outcome=Outcome.FAILED)], number=0, reason="")


NUMBERS = st.integers(1, 6).map(float)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=15),
    NUMBERS,
    st.sampled_from(["loss", "peak_memory", None]),
)
def test_no_pick_is_dominated_by_what_satisfies_too(values, bound, minimize):
    trials = [trial(i, *each) for i, each in enumerate(values)]
    conditions = where(f"peak_memory <= {bound:g} GiB")
    satisfying = [each for each in trials if conditions[0].holds(each)]
    if not satisfying:
        with pytest.raises(InputError, match="nearest miss"):
            pick(trials, ALL, where=conditions)
        return
    chosen = pick(trials, ALL, minimize=minimize, where=conditions).trial
    assert chosen in satisfying
    mine = [metric.oriented(chosen.metrics[metric.name]) for metric in ALL]
    for other in satisfying:
        theirs = [metric.oriented(other.metrics[metric.name]) for metric in ALL]
        assert not (all(a <= b for a, b in zip(theirs, mine, strict=True)) and theirs != mine)
    if minimize:
        assert chosen.metrics[minimize] == min(each.metrics[minimize] for each in satisfying)
