import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_objective import TinyModel

from search.memory import energy
from search.memory.device import device_here
from search.memory.energy import Counter, EnergyMeter
from search.memory.measurement import prepare_process
from search.results import Outcome
from search.trials import attempt as module
from search.trials.attempt import Task, attempt
from search.trials.steps import CURVE_POINTS, Steps, steady_steps
from search.units import GIB


@pytest.fixture(autouse=True)
def prepared():
    torch.set_num_threads(1)
    prepare_process()


def task(*, num_tokens=64, time_limit_seconds=None, **params) -> Task:
    return Task(
        number=3,
        params={"width": 4, "batch_size": 8, **params},
        num_tokens=num_tokens,
        budget_bytes=4 * GIB,
        time_limit_seconds=time_limit_seconds,
        objectives=("bits_per_byte", "tokens_per_second", "peak_memory"),
    )


def ended(a_task, reports=None, objective=None):
    attempted = attempt(a_task, objective=objective or TinyModel(), device=device_here())
    try:
        while True:
            progress = next(attempted)
            if reports is not None:
                reports.append(progress)
    except StopIteration as end:
        return end.value


def test_a_completed_trial_has_all_its_figures():
    trial = ended(task(num_tokens=60))
    assert (trial.number, trial.outcome, trial.message) == (3, Outcome.COMPLETED, "")
    assert set(trial.metrics) == {"bits_per_byte", "tokens_per_second", "peak_memory"}
    assert [point.num_tokens for point in trial.curve] == [8, 16, 24, 32, 40, 48, 56, 60]
    assert trial.details["num_steps"] == 8
    # a linear map of 8 to 4 with its bias
    assert trial.details["num_parameters"] == 8 * 4 + 4
    assert trial.details["overflow_steps"] == 0
    assert trial.details["threads"] == 1
    assert trial.started_at > 0


def counting(*joules):
    values = iter(joules)
    return lambda _: EnergyMeter((Counter(read=lambda: next(values)),))


def test_a_trial_alone_has_the_energy_of_its_tokens(monkeypatch):
    monkeypatch.setattr(energy, "energy_meter", counting(1000, 1096))
    assert ended(replace(task(), alone=True)).metrics["energy_per_token"] == 96 / 64


def test_energy_that_cannot_be_told_is_absent(monkeypatch):
    monkeypatch.setattr(energy, "energy_meter", counting(1000, 1000))  # too short for the counter
    assert "energy_per_token" not in ended(replace(task(), alone=True)).metrics
    monkeypatch.setattr(energy, "energy_meter", counting(None))
    assert "energy_per_token" not in ended(replace(task(), alone=True)).metrics
    assert "energy_per_token" not in ended(task()).metrics  # others have the device too


def test_how_often_it_reports_changes_nothing(monkeypatch):
    whole, reports = ended(task()), []
    monkeypatch.setattr(module, "CHUNK_SECONDS", 0)
    chunked = ended(task(), reports=reports)
    assert [report.tokens_seen for report in reports] == [8, 16, 24, 32, 40, 48, 56, 64]
    assert chunked.metrics["bits_per_byte"] == whole.metrics["bits_per_byte"]
    assert chunked.curve == whole.curve


@pytest.mark.parametrize(
    ("params", "outcome", "message"),
    [
        ({"ending": "nan"}, Outcome.DIVERGED, "the loss was nan after 8 of 64 tokens"),
        ({"ending": "bad_evaluation"}, Outcome.DIVERGED, "the evaluation gave bits_per_byte = inf"),
        ({"ending": "error"}, Outcome.FAILED, "ValueError: the user's own mistake"),
        ({"ending": "exit"}, Outcome.FAILED, "SystemExit: 3"),
        ({"ending": "interrupt"}, Outcome.FAILED, "KeyboardInterrupt"),
        ({"ending": "no_metric"}, Outcome.FAILED, "gave no bits_per_byte (it gave other)"),
        ({"batch_size": -1}, Outcome.FAILED, "batch_size must be above 0"),
        ({"hoard_mib": 2**24}, Outcome.OUT_OF_MEMORY, "can't allocate memory"),
    ],
)
def test_how_a_trial_ends_is_data(params, outcome, message):
    trial = ended(task(**params))
    assert trial.outcome is outcome
    assert message in trial.message
    assert all(math.isfinite(value) for value in trial.metrics.values())


class JudgedTooLarge(TinyModel):
    """Trains in little memory, and is judged in more than there is."""

    def evaluate(self, model, batches):
        torch.ones(2**42)
        return super().evaluate(model, batches)


def test_memory_that_runs_out_in_evaluation_leaves_the_training_batch_as_it_is():
    # a retry would shrink a batch that is not to blame (transformers #32215)
    asked = task(batch_size=8, micro_batch_size=4)
    trial = ended(asked, objective=JudgedTooLarge())
    assert trial.outcome is Outcome.OUT_OF_MEMORY
    assert trial.params == asked.params
    assert trial.details["num_steps"] == 64 // 8
    assert "bits_per_byte" not in trial.metrics


def test_the_traceback_of_a_mistake_is_kept():
    message = ended(task(ending="error")).message
    assert message.startswith("Traceback (most recent call last)")
    assert "tiny_objective.py" in message


def test_a_trial_ends_at_its_time_limit_between_two_steps():
    trial = ended(task(num_tokens=10**9, time_limit_seconds=0.01))
    assert trial.outcome is Outcome.TIMED_OUT
    assert "its 0.01 s were over after" in trial.message
    assert trial.curve


def test_a_scaler_that_overflows_for_ever_diverges_after_ten_steps():
    trial = ended(task(num_tokens=10**4, ending="nan", precision="16-mixed"))
    assert trial.outcome is Outcome.DIVERGED
    assert trial.details["num_steps"] == 10


def test_closing_an_attempt_ends_it_without_a_trial(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_SECONDS", 0)
    attempted = attempt(task(), objective=TinyModel(), device=device_here())
    next(attempted)
    attempted.close()
    assert list(attempted) == []


@pytest.mark.parametrize(
    "params", [{}, {"ending": "nan"}, {"ending": "error"}, {"hoard_mib": 2**24}]
)
def test_no_frame_keeps_the_model_alive(params, monkeypatch):
    import gc
    import weakref

    alive = weakref.WeakSet()
    real = TinyModel.model

    def noted(self, params):
        alive.add(model := real(self, params))
        return model

    monkeypatch.setattr(TinyModel, "model", noted)
    trial = ended(task(**params))
    gc.collect()
    assert trial.details["num_parameters"] == 36
    assert len(alive) == 0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([8], [0]),  # nothing else to go by
        ([8, 8], [1]),
        ([8, 8, 4], [1]),  # a short last step
        ([8, 4], [0]),
        ([8] * 20, list(range(2, 20))),  # a tenth warms up
        ([8] * 1000, list(range(3, 1000))),  # but three steps at most
    ],
)
def test_which_steps_the_speed_is_taken_from(tokens, expected):
    assert list(steady_steps(tokens)) == expected


@given(num_steps=st.integers(1, 300))
def test_a_curve_is_short_rising_and_ends_at_the_last_step(num_steps):
    losses = [1 / (1 + step) for step in range(num_steps)]
    points = Steps(tokens=[8] * num_steps, losses=losses).curve()
    assert len(points) == min(num_steps, CURVE_POINTS)
    assert [point.num_tokens for point in points] == sorted({point.num_tokens for point in points})
    assert points[-1].num_tokens == 8 * num_steps
    assert all(point.value == losses[point.num_tokens // 8 - 1] for point in points)
