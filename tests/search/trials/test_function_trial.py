"""A function in this process, without Ray."""

from functools import partial

import pytest
import tiny_function
import torch

from search.memory.device import device_here
from search.memory.measurement import prepare_process
from search.memory.process import note_what_is_held
from search.results import Outcome
from search.trials import function_trial, untraced
from search.trials.attempt import Task
from search.units import GIB, MIB


@pytest.fixture(autouse=True)
def prepared():
    torch.set_num_threads(1)
    prepare_process()
    note_what_is_held()  # by the tests before this one


def ended(function=tiny_function.train, *, num_tokens=0, budget=GIB, limit=None, **params):
    task = Task(
        number=3,
        params=params,
        num_tokens=num_tokens,
        budget_bytes=budget,
        time_limit_seconds=limit,
        objectives=("accuracy", "peak_memory"),
    )
    start = partial(function_trial.running, function=function, device=device_here())
    attempted = untraced.attempt(task, start)
    try:
        while True:
            next(attempted)
    except StopIteration as end:
        return end.value


def test_a_completed_trial_has_what_was_reported_returned_and_measured():
    trial = ended(width=4, size=16)
    assert (trial.number, trial.outcome, trial.message) == (3, Outcome.COMPLETED, "")
    assert trial.metrics.keys() == {
        "accuracy",
        "drawn",
        "held",
        "loss",
        "peak_memory",
        "tokens_per_second",
    }
    assert trial.metrics["accuracy"] == 0.75
    assert trial.metrics["peak_memory"] == pytest.approx(64 * MIB, rel=0.1)
    assert [point.value for point in trial.curve if point.name == "loss"] == [3.0, 2.0, 1.0]
    assert trial.details["num_reports"] == 4
    assert trial.details["held_bytes"] < 8 * MIB
    assert trial.details["threads"] == 1


def test_random_numbers_hang_on_the_seed_alone():
    drawn = [ended(seed=seed).metrics["drawn"] for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    ("ending", "outcome", "message"),
    [
        ("error", Outcome.FAILED, "the user's own mistake"),
        ("exit", Outcome.FAILED, "SystemExit: 3"),
        ("nan", Outcome.DIVERGED, "the loss was nan in report 4"),
        ("nothing", Outcome.FAILED, "it reported no accuracy (it reported loss, held, "),
    ],
)
def test_each_way_to_end_has_its_outcome(ending, outcome, message):
    trial = ended(ending=ending)
    assert trial.outcome is outcome
    assert message in trial.message


def test_beyond_its_budget_memory_runs_out_and_the_next_trial_has_it_again():
    trial = ended(width=4, size=64, budget=128 * MIB)
    assert trial.outcome is Outcome.OUT_OF_MEMORY
    assert "can't allocate memory" in trial.message
    assert trial.metrics["peak_memory"] < 128 * MIB
    assert ended(width=1, size=64, budget=128 * MIB).outcome is Outcome.COMPLETED


def test_it_is_over_with_its_tokens_though_it_would_go_on():
    trial = ended(ending="endless", num_tokens=200)
    assert [point.num_tokens for point in trial.curve if point.name == "loss"] == [100, 200]
    assert trial.outcome is Outcome.FAILED  # its accuracy comes after them
    assert trial.message.startswith("it reported no accuracy")


def test_one_that_takes_every_exception_is_over_all_the_same():
    assert ended(ending="swallows", num_tokens=300).outcome is Outcome.FAILED
    assert ended(ending="swallows", limit=0.3).outcome is Outcome.TIMED_OUT


def test_beyond_its_time_it_is_stopped_though_it_reports_nothing():
    trial = ended(ending="endless", limit=0.3)
    assert trial.outcome is Outcome.TIMED_OUT
    assert trial.message == "its 0.3 s were over after 3 reports"
    assert function_trial.LEFT_RUNNING not in trial.details


def test_one_that_cannot_be_stopped_says_so(monkeypatch):
    monkeypatch.setattr(function_trial, "_SECONDS_TO_END", 0.2)
    trial = ended(ending="stuck", limit=0.3)
    assert trial.outcome is Outcome.TIMED_OUT
    assert trial.details[function_trial.LEFT_RUNNING] is True


def test_a_report_of_no_number_is_the_users_mistake():
    trial = ended(lambda params, report: report(accuracy="high", **params))
    assert trial.outcome is Outcome.FAILED
    assert "report: accuracy must be a number, found 'high'" in trial.message
