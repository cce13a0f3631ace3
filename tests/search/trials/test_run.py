"""Real Ray, real torch, a model of a few weights."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from driver import drive
from tiny_objective import TinyModel
from tiny_sweep import fits_up_to, tiny_sweep

from search.errors import MachineError, SweepStoppedError
from search.memory.feasibility import RESCUES, judge
from search.memory.machine import CpuMemory
from search.memory.prediction import Predictor
from search.results import Outcome
from search.trials import run
from search.trials.events import (
    SpaceExhausted,
    TrialFinished,
    TrialProgress,
    TrialRefused,
    TrialStarted,
)
from search.trials.ledger import Ledger
from search.trials.placement import Slots
from search.units import MIB

SLOTS = Slots(num_slots=2, budget_bytes=512 * MIB, cpus=1)


@pytest.fixture(scope="module")
def ray():
    """One Ray for all sweeps of this module, as `run_sweep` itself starts it."""
    with run._ray(SLOTS, None):
        yield


@pytest.fixture
def events():
    return []


@pytest.mark.usefixtures("ray")
def test_a_sweep_trains_what_fits_in_warm_workers(tmp_path, events):
    space = {"width": [1, 2, 4, 8, 16, 32], "batch_size": [8, 16]}
    sweep = tiny_sweep(space=space, trials=10)
    trials = drive(tmp_path, sweep, on_event=events.append, fits=fits_up_to(16))
    assert [trial.number for trial in trials] == list(range(10))
    assert {trial.outcome for trial in trials} == {Outcome.COMPLETED}
    assert all(trial.params["width"] <= 16 for trial in trials)
    assert all(trial.predicted is not None for trial in trials)
    # two slots, two processes: each is used again and again
    assert len({trial.details["pid"] for trial in trials}) <= 2
    # and each time with the model of its own trial: 8 weights and a bias for each of its width
    assert all(trial.details["num_parameters"] == 9 * trial.params["width"] for trial in trials)
    assert Counter(map(type, events))[TrialStarted] == 10
    assert Counter(map(type, events))[TrialFinished] == 10
    assert all(
        event.trial.params["width"] == 32 for event in events if isinstance(event, TrialRefused)
    )
    assert Ledger(tmp_path).read().trials == trials
    events.clear()
    assert drive(tmp_path, sweep, on_event=events.append) == trials
    assert events == []  # it was finished: nothing runs


@pytest.mark.usefixtures("ray")
def test_what_does_not_fit_is_rescued_and_trained_with_its_whole_batch(tmp_path, events):
    predict = Predictor(TinyModel(), CpuMemory(overhead_bytes=0), tmp_path / "cache")
    whole = {"width": 64, "batch_size": 4096, "micro_batch_size": 2048}
    budget_bytes = predict(whole).high_bytes

    def fits(params):
        return judge(params, predict, budget_bytes, rescue=RESCUES)

    sweep = tiny_sweep(
        space={"batch_size": [8, 4096]},
        fixed={"width": 64},
        trial={"tokens": 8192},
        memory={"budget": 512 * MIB, "rescue": True},
        trials=2,
    )
    folder = tmp_path / "sweep"
    trials = drive(folder, sweep, on_event=events.append, fits=fits)
    assert [trial.outcome for trial in trials] == [Outcome.COMPLETED] * 2
    small, large = sorted(trials, key=lambda trial: trial.params["batch_size"])
    assert small.params == {"seed": 0, "width": 64, "batch_size": 8, "micro_batch_size": "equal"}
    assert "rescued" not in small.details
    assert (large.params["batch_size"], large.params["micro_batch_size"]) == (4096, 2048)
    assert large.details["rescued"] == "micro_batch_size 2048"
    assert large.details["num_steps"] == 2
    assert large.predicted.high_bytes <= budget_bytes
    assert not [event for event in events if isinstance(event, TrialRefused)]
    assert Ledger(folder).read().trials == trials


@pytest.mark.usefixtures("ray")
def test_no_way_to_end_stops_the_others(tmp_path, events, capfd):
    endings = {
        "completed": Outcome.COMPLETED,
        "nan": Outcome.DIVERGED,
        "error": Outcome.FAILED,
        "exit": Outcome.FAILED,
        "interrupt": Outcome.FAILED,
        "no_metric": Outcome.FAILED,
        "slow": Outcome.TIMED_OUT,
        "crash": Outcome.FAILED,
    }
    sweep = tiny_sweep(
        space={"ending": list(endings)},
        fixed={"width": 4, "batch_size": 8},
        trial={"tokens": 400, "time_limit": 6},
        trials=20,
        stop_after_failures=20,
    )
    trials = drive(tmp_path, sweep, on_event=events.append)
    assert {trial.params["ending"]: trial.outcome for trial in trials} == endings
    by_ending = {trial.params["ending"]: trial for trial in trials}
    assert "the user's own mistake" in by_ending["error"].message
    assert "in 2 attempts" in by_ending["crash"].message
    assert "the worker process crashed (SIGSEGV)" in by_ending["crash"].message
    told = SpaceExhausted(message="all 8 points of the space were tried: 8 trained")
    assert told in events
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("ray")
def test_without_the_gate_out_of_memory_is_met_recorded_and_passed_over(tmp_path, events):
    sweep = tiny_sweep(
        space={"hoard_mib": [0, 1, 2, 3000, 3001, 3002]},
        fixed={"width": 4, "batch_size": 8},
        trials=6,
        memory={"gate": False, "budget": 512 * MIB},
    )
    trials = drive(tmp_path, sweep, on_event=events.append, fits=fits_up_to(2))
    outcomes = {trial.params["hoard_mib"]: trial.outcome for trial in trials}
    assert outcomes == {
        hoard: Outcome.OUT_OF_MEMORY if hoard >= 3000 else Outcome.COMPLETED
        for hoard in (0, 1, 2, 3000, 3001, 3002)
    }
    assert all(trial.predicted is not None for trial in trials)


@pytest.mark.usefixtures("ray")
def test_a_process_that_keeps_memory_trains_no_second_trial(tmp_path, events):
    sweep = tiny_sweep(
        space={"width": [1, 2, 3]},
        fixed={"ending": "leak", "batch_size": 8},
        trial={"tokens": 8},
        trials=3,
    )
    trials = drive(tmp_path, sweep, on_event=events.append, num_slots=1)
    assert [trial.outcome for trial in trials] == [Outcome.COMPLETED] * 3
    assert len({trial.details["pid"] for trial in trials}) == 3
    assert all(trial.details["held_bytes"] > 40 * MIB for trial in trials)


@pytest.mark.usefixtures("ray")
def test_an_objective_that_cannot_be_loaded_is_a_failure_with_its_reason(tmp_path, events):
    sweep = tiny_sweep(objective="tiny_objective:NoSuch", stop_after_failures=2)
    with pytest.raises(SweepStoppedError, match="it offers TinyModel"):
        drive(tmp_path, sweep, on_event=events.append)


@pytest.mark.usefixtures("ray")
def test_asked_to_stop_it_keeps_what_is_done_and_goes_on_later(tmp_path, events):
    sweep = tiny_sweep(
        space={"width": [1, 2, 3]},
        fixed={"batch_size": 8, "ending": "slow"},
        trial={"tokens": 80},
        trials=3,
    )
    stop = threading.Event()

    def stop_at_progress(event):
        events.append(event)
        if isinstance(event, TrialProgress):
            stop.set()

    done = drive(tmp_path, sweep, on_event=stop_at_progress, stop=stop)
    unfinished = Ledger(tmp_path).read().unfinished
    assert unfinished
    events.clear()
    after = drive(tmp_path, sweep, on_event=events.append)
    assert [trial.number for trial in after] == [0, 1, 2]
    assert after[: len(done)] == done
    started = [event.number for event in events if isinstance(event, TrialStarted)]
    assert started[: len(unfinished)] == [each.number for each in unfinished]


def test_when_nothing_fits_it_says_so_before_ray_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_ray", None)
    with pytest.raises(SweepStoppedError, match="none of the 8 points of the space fits"):
        drive(tmp_path, tiny_sweep(), on_event=print, fits=fits_up_to(0.5))


@pytest.mark.usefixtures("ray")
def test_what_breaks_in_a_listener_is_raised_as_it_is(tmp_path):
    def broken(event):
        if isinstance(event, TrialFinished):
            msg = "the disk is full"
            raise MachineError(msg)

    with pytest.raises(MachineError, match="the disk is full"):
        drive(tmp_path, tiny_sweep(), on_event=broken)
    assert Ledger(tmp_path).read().trials


@pytest.mark.usefixtures("ray")
def test_what_the_cluster_can_never_give_is_refused_at_once():
    too_much = Slots(num_slots=1, budget_bytes=MIB, cpus=64)
    with (
        pytest.raises(
            MachineError,
            match="a trial needs 64 CPU on one machine, the largest of the Ray cluster has 2",
        ),
        run._ray(too_much, None),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "said"),
    [(None, "Ray did not start: no port"), ("10.0.0.1:6379", "cluster at 10.0.0.1:6379 cannot be")],
)
def test_why_ray_does_not_start_is_said(address, said):
    with pytest.raises(MachineError, match=said), run._start_faults(address):
        raise Exception("no port\nand pages more")  # noqa: EM101, TRY002, TRY003 - as Ray does


def test_signals_are_as_before_once_ray_runs():
    before = signal.getsignal(signal.SIGTERM)
    with run._signals_kept():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does
        assert signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_after_a_kill_no_trial_is_lost_and_no_finished_one_runs_again(tmp_path, events):
    gate, trace, folder = tmp_path / "gate", tmp_path / "trace", tmp_path / "sweep"
    sweep = tiny_sweep(
        space={"width": [1, 2, 3, 4, 5, 100]},
        fixed={"batch_size": 8},
        data={"gate": str(gate), "trace": str(trace)},
    )
    finished = _drive_and_kill(folder, sweep)
    on_record = Ledger(folder).read()
    assert finished <= {trial.params["width"] for trial in on_record.trials}
    assert 100 in {started.params["width"] for started in on_record.unfinished}
    gate.touch()
    trials = drive(folder, sweep, on_event=events.append)
    assert sorted(trial.params["width"] for trial in trials) == [1, 2, 3, 4, 5, 100]
    assert all(trial in trials for trial in on_record.trials)
    attempts = Counter(map(int, trace.read_text().split()))
    assert all(attempts[trial.params["width"]] == 1 for trial in on_record.trials)
    assert {trial.number for trial in trials} == set(range(6))


def _drive_and_kill(folder: Path, sweep) -> set[int]:
    """Kills a driver when three trials have finished and the one that waits has started."""
    command = [sys.executable, str(Path(__file__).with_name("driver.py"))]
    search_path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": search_path, "PYTHONWARNINGS": "error"}
    arguments = [str(folder), sweep.model_dump_json()]
    said = set()
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    ) as driver:
        for line in driver.stdout:
            said.add(tuple(line.split()[:2]))
            finished = {int(width) for kind, width in said if kind == "finished"}
            if len(finished) >= 3 and ("started", "100") in said:
                break
        driver.kill()
    return finished
