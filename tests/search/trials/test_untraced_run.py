"""Real Ray, a function and a command of a few lines, memory learned from their trials."""

import sys
import threading
from pathlib import Path

import pytest
from driver import drive
from tiny_sweep import tiny_sweep

from search.memory.learned_fit import NOT_PREDICTED, LearnedFit
from search.results import Outcome
from search.trials import run
from search.trials.events import TrialFinished, TrialRefused
from search.trials.ledger import Ledger
from search.trials.placement import Slots
from search.units import MIB

BUDGET_BYTES = 128 * MIB
SLOTS = Slots(num_slots=2, budget_bytes=512 * MIB, cpus=1)
SCRIPT = Path(__file__).with_name("tiny_command.py")
FUNCTION = {"objective": "tiny_function:train"}
COMMAND = {
    "objective": None,
    "command": f"{sys.executable} -S {SCRIPT} --width {{width}} --size {{size}}",
}


@pytest.fixture(scope="module")
def ray():
    """One Ray for all sweeps of this module, as `run_sweep` itself starts it."""
    with run._ray(SLOTS, None):
        yield


@pytest.fixture
def events():
    return []


def sweep_of(what, **changes):
    return tiny_sweep(
        **{
            **what,
            "trial": {},
            "objectives": {"accuracy": "max", "peak_memory": "min"},
            "memory": {"budget": BUDGET_BYTES, "grows_with": ["width", "size"]},
            **changes,
        }
    )


def learned(folder, sweep, events, *, stop=None):
    """Runs a sweep as the pipeline does: what the ledger knows is learned first."""
    fit = LearnedFit(
        sweep.memory.grows_with, budget_bytes=BUDGET_BYTES, risk=sweep.memory.risk, kind="cpu"
    )
    for trial in Ledger(folder).read().trials:
        fit.learn(trial)

    def heard(event):
        events.append(event)
        if isinstance(event, TrialFinished):
            fit.learn(event.trial)
            if stop is not None and event.trial.outcome is Outcome.OUT_OF_MEMORY:
                stop.set()

    drive(folder, sweep, on_event=heard, fits=fit, order=fit.order, stop=stop, num_slots=1)
    return Ledger(folder).read()


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("what", [FUNCTION, COMMAND], ids=["function", "command"])
def test_from_small_to_large_until_one_runs_out_and_rules_out_what_is_larger(
    tmp_path, events, what
):
    # 64 MiB fit beside what Python itself takes, 256 MiB do not
    space = {"width": [4, 1, 16, 2, 8], "size": [32]}
    sweep = sweep_of(what, space=space, trials=5)
    state = learned(tmp_path, sweep, events)
    ends = [(trial.params["width"], trial.outcome) for trial in state.trials]
    assert ends[:3] == [
        (1, Outcome.COMPLETED),
        (2, Outcome.COMPLETED),
        (4, Outcome.OUT_OF_MEMORY),
    ]
    assert len(ends) == 3
    refused = [event.trial for event in events if isinstance(event, TrialRefused)]
    assert [trial.params["width"] for trial in refused] == [8, 16]
    for trial in refused:
        assert trial.outcome is Outcome.PRUNED_BY_MEMORY
        assert trial.message.startswith(
            f"{NOT_PREDICTED}: width 4, size 32 ran out of 128 MiB, this is no smaller"
        )
    assert state.refused == tuple(refused)
    small, large = state.trials[:2]
    assert large.metrics["peak_memory"] - small.metrics["peak_memory"] == pytest.approx(
        32 * MIB, rel=0.1
    )
    assert large.metrics["accuracy"] == 0.5
    assert {point.name for point in large.curve} >= {"loss", "accuracy"}


@pytest.mark.usefixtures("ray")
def test_interrupted_it_goes_on_with_what_was_learned(tmp_path, events):
    sweep = sweep_of(FUNCTION, space={"width": [1], "size": [512, 32, 600, 1, 256]}, trials=5)
    stop = threading.Event()
    before = learned(tmp_path, sweep, events, stop=stop)
    outcomes = [trial.outcome for trial in before.trials]
    assert outcomes == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.OUT_OF_MEMORY]
    after = learned(tmp_path, sweep, events)
    assert after.trials == before.trials
    assert sorted(trial.params["size"] for trial in after.refused) == [512, 600]
    assert all("size 256 ran out" in trial.message for trial in after.refused)


@pytest.mark.usefixtures("ray")
def test_a_function_that_keeps_memory_gets_a_new_process_and_stops_no_other(tmp_path, events):
    sweep = sweep_of(
        FUNCTION,
        space={"ending": ["leak", "error", "nan", "completed"], "width": [2, 3]},
        memory={"budget": 512 * MIB},
        trials=20,
        stop_after_failures=20,
    )
    trials = drive(tmp_path, sweep, on_event=events.append)
    by_ending = {trial.params["ending"]: trial.outcome for trial in trials}
    assert by_ending == {
        "leak": Outcome.COMPLETED,
        "error": Outcome.FAILED,
        "nan": Outcome.DIVERGED,
        "completed": Outcome.COMPLETED,
    }
    leaking = [trial for trial in trials if trial.params["ending"] == "leak"]
    assert len({trial.details["pid"] for trial in leaking}) == 2


@pytest.mark.usefixtures("ray")
def test_what_a_command_prints_lies_beside_the_ledger(tmp_path, events):
    sweep = sweep_of(COMMAND, space={"width": [1], "size": [0]}, trials=1)
    (trial,) = drive(tmp_path, sweep, on_event=events.append)
    assert trial.details["log"] == str(tmp_path / "logs" / "trial-000.log")
    assert "about to start" in (tmp_path / "logs" / "trial-000.log").read_text()
