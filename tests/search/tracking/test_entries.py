from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import CurvePoint, Outcome, PredictedMemory, Trial
from search.tracking import entries
from search.tracking.entries import RecordedSweep, RunStatus
from search.units import GIB

LOSS = Metric(name="bits_per_byte", goal=Goal.MIN)
SWEEP = RecordedSweep(
    name="quick",
    sweep_id="id-1",
    objectives=(LOSS, PEAK_MEMORY),
    metrics=(LOSS, TOKENS_PER_SECOND, PEAK_MEMORY),
    dimensions=("learning_rate", "batch_size", "precision", "checkpointing"),
    log_dimensions=frozenset({"learning_rate"}),
)
PARAMS = {
    "learning_rate": 0.001,
    "batch_size": 32,
    "precision": "bf16-mixed",
    "checkpointing": True,
    "width": 64,
}
PREDICTED = PredictedMemory(
    expected_bytes=3 * GIB, low_bytes=2 * GIB, high_bytes=4 * GIB, phase="backward"
)


def trial(outcome=Outcome.COMPLETED, **changes):
    known = {
        "metrics": {
            "bits_per_byte": 2.5,
            "tokens_per_second": 9000.0,
            "peak_memory": 2.0 * GIB,
            "energy": 7.0,
        },
        "predicted": PREDICTED,
        "started_at": 1000.0,
        "duration_seconds": 10.0,
    }
    return Trial(number=7, params=PARAMS, outcome=outcome, **(known | changes))


def test_metrics_have_sections_units_and_numeric_copies_of_params():
    assert entries.final_metrics(trial(details={"overflow_steps": 3, "alone": True}), SWEEP) == {
        "params/log10_learning_rate": -3.0,
        "params/batch_size": 32.0,
        "quality/bits_per_byte": 2.5,
        "speed/tokens_per_second": 9000.0,
        "memory/peak_gib": 2.0,
        "other/energy": 7.0,
        "memory/predicted_gib": 3.0,
        "memory/predicted_high_gib": 4.0,
        "memory/error_percent": 50.0,  # 3 GiB predicted, 2 GiB measured
        "details/overflow_steps": 3.0,
    }


def test_a_trial_that_ran_out_of_memory_keeps_what_is_known():
    found = entries.final_metrics(trial(Outcome.OUT_OF_MEMORY, metrics={}), SWEEP)
    assert set(found) == {
        "params/log10_learning_rate",
        "params/batch_size",
        "memory/predicted_gib",
        "memory/predicted_high_gib",
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_left_out(bad):
    curve = (CurvePoint(name="loss", num_tokens=5, value=bad),)
    found = entries.metric_entries(trial(metrics={"bits_per_byte": bad}, curve=curve), SWEEP)
    assert "quality/bits_per_byte" not in {entry.key for entry in found}
    assert "training/loss" not in {entry.key for entry in found}


def test_a_curve_goes_by_tokens_and_its_times_by_the_trial():
    curve = tuple(
        CurvePoint(name=name, num_tokens=tokens, value=5.0)
        for name, tokens in (("loss", 100), ("training_loss", 200))
    )
    found = [entry for entry in entries.metric_entries(trial(curve=curve), SWEEP) if entry.step > 0]
    # From 1000 s on for 10 s: half of the tokens after half of the time.
    assert [(entry.key, entry.step, entry.timestamp_ms) for entry in found] == [
        ("training/loss", 100, 1_005_000),
        ("training/loss", 200, 1_010_000),
    ]


def test_finals_are_written_at_step_0_at_the_end_of_the_trial():
    found = entries.metric_entries(trial(), SWEEP)
    assert {(entry.step, entry.timestamp_ms) for entry in found} == {(0, 1_010_000)}


def test_params_are_short_texts_under_their_plain_names():
    params = {"rate": 0.00123456789, "flag": True, "none": None, "word": "adamw", "count": 10**7}
    assert entries.run_params(Trial(number=0, params=params, outcome=Outcome.COMPLETED)) == {
        "rate": "0.00123457",
        "flag": "true",
        "none": "none",
        "word": "adamw",
        "count": "10000000",
    }


@pytest.mark.parametrize("outcome", Outcome)
def test_the_status_tells_whether_the_trial_ended_as_planned(outcome):
    planned = outcome in {Outcome.COMPLETED, Outcome.STOPPED_EARLY}
    assert entries.run_status(outcome) is (RunStatus.FINISHED if planned else RunStatus.FAILED)


def test_tags_name_the_sweep_the_trial_and_the_reason():
    failed = trial(Outcome.FAILED, message="Traceback\nValueError: no", details={"device": "cpu"})
    tags = entries.run_tags(failed, SWEEP, parent_run_id="p")
    assert tags == {
        "paretune.sweep": "quick",
        "paretune.sweep_id": "id-1",
        "mlflow.parentRunId": "p",
        "paretune.trial": "7",
        "paretune.outcome": "failed",
        "paretune.pareto": "false",
        "paretune.detail.device": "cpu",
        "mlflow.note.content": "```\nTraceback\nValueError: no\n```",
    }


@given(st.integers(0, 20_000))
def test_a_long_traceback_keeps_its_end_within_what_mlflow_takes(length):
    tags = entries.run_tags(
        trial(Outcome.FAILED, message="x" * length + "the end"), SWEEP, parent_run_id="p"
    )
    assert len(tags["mlflow.note.content"]) < 8000
    assert tags["mlflow.note.content"].endswith("the end\n```")
