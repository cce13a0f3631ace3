import math

import pytest

from search.results import Outcome
from search.trials.attempt import Task
from search.trials.reports import Ending, Reports, TrialOverError


def reports(*, num_tokens=0, objectives=("accuracy", "peak_memory")):
    task = Task(
        number=0,
        params={},
        num_tokens=num_tokens,
        budget_bytes=1,
        time_limit_seconds=None,
        objectives=objectives,
    )
    return Reports(task)


def taken(*each, **options):
    found = reports(**options)
    for figures in each:
        found.take(figures)
    return found


def ending_of(*each, **options):
    with pytest.raises(TrialOverError) as caught:
        taken(*each, **options)
    return caught.value.ending


def test_the_last_value_of_each_figure_counts():
    found = taken({"accuracy": 0.5, "loss": 2}, {"accuracy": 0.9}, {"f1": 0.4})
    assert found.metrics() == {"accuracy": 0.9, "loss": 2.0, "f1": 0.4}
    assert found.completed() == Ending(outcome=Outcome.COMPLETED)
    assert found.loss == 2.0


def test_what_is_measured_is_not_taken_from_a_report():
    found = taken({"accuracy": 1, "peak_memory": 3, "tokens_per_second": 9e9})
    assert found.metrics() == {"accuracy": 1.0}


def test_a_curve_has_every_figure_by_tokens():
    found = taken({"loss": 2, "tokens": 10}, {"loss": 1, "accuracy": 0.5, "tokens": 20})
    points = [(point.name, point.num_tokens, point.value) for point in found.curve()]
    assert points == [("loss", 10, 2.0), ("loss", 20, 1.0), ("accuracy", 20, 0.5)]


def test_without_tokens_reports_are_counted():
    found = taken({"loss": 2}, {"loss": 1})
    assert [point.num_tokens for point in found.curve()] == [1, 2]
    assert found.speed() == {}


def test_a_report_without_tokens_stands_where_the_last_one_stood():
    assert taken({"tokens": 10}, {"accuracy": 1}).tokens == 10


def test_a_curve_is_thinned_evenly():
    found = taken(*({"loss": n, "tokens": n} for n in range(1, 501)))
    assert [point.num_tokens for point in found.curve()] == list(range(10, 501, 10))


def test_speed_leaves_out_what_came_before_the_first_report(monkeypatch):
    times = iter([0.0, 5.0, 6.0, 7.0])
    monkeypatch.setattr("search.trials.reports.time.perf_counter", lambda: next(times))
    found = taken({"tokens": 100}, {"tokens": 200}, {"tokens": 300})
    assert found.speed() == {"tokens_per_second": 100.0}


def test_speed_of_a_single_report_is_from_the_start(monkeypatch):
    times = iter([0.0, 5.0])
    monkeypatch.setattr("search.trials.reports.time.perf_counter", lambda: next(times))
    assert taken({"tokens": 100}).speed() == {"tokens_per_second": 20.0}


def test_a_trial_is_over_with_its_tokens():
    assert ending_of({"tokens": 50}, {"accuracy": 1, "tokens": 100}, num_tokens=100) == Ending(
        outcome=Outcome.COMPLETED
    )
    assert taken({"accuracy": 1}, num_tokens=1).tokens == 1  # a report is no token


def test_what_the_sweep_asks_for_must_be_reported():
    ending = taken({"loss": 1}, objectives=("accuracy", "tokens_per_second")).completed()
    assert ending.outcome is Outcome.FAILED
    assert ending.message == (
        "it reported no accuracy, tokens_per_second (it reported loss); "
        "report the `tokens` trained on so far, and their speed is measured"
    )
    assert reports().completed().message == "it reported no accuracy (it reported nothing)"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_it_at_once_another_figure_at_its_end(value):
    ending = ending_of({"loss": 1}, {"loss": value})
    assert (ending.outcome, ending.message) == (
        Outcome.DIVERGED,
        f"the loss was {value:g} in report 2",
    )
    found = taken({"accuracy": value})
    assert found.completed().outcome is Outcome.DIVERGED
    assert found.metrics() == {}
    found.take({"accuracy": 1})
    assert found.completed().outcome is Outcome.COMPLETED


def test_a_figure_must_be_a_number():
    with pytest.raises(TypeError, match="report: accuracy must be a number, found 'high'"):
        reports().take({"accuracy": "high"})
