from __future__ import annotations

import dataclasses
import threading
from collections import Counter

import pytest
from mlflow import MlflowClient

from search.errors import MachineError
from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import CurvePoint, Outcome, PredictedMemory, Trial
from search.tracking import record
from search.tracking.entries import RecordedSweep, RunStatus
from search.tracking.record import Recorder
from search.tracking.runs import SweepRuns, mark_pick
from search.tracking.store import open_client, open_experiment
from search.units import GIB

LOSS = Metric(name="loss", goal=Goal.MIN)
SWEEP = RecordedSweep(
    name="quick",
    sweep_id="id-1",
    objectives=(LOSS, TOKENS_PER_SECOND),
    metrics=(LOSS, TOKENS_PER_SECOND, PEAK_MEMORY),
    dimensions=("rate",),
    log_dimensions=frozenset({"rate"}),
    text="name: quick\n",
    provenance={"corpus": "stdlib"},
)


def trial(number, loss=1.0, speed=100.0, outcome=Outcome.COMPLETED):
    measured = {"loss": loss, "tokens_per_second": speed, "peak_memory": float(GIB)}
    return Trial(
        number=number,
        params={"rate": 0.001, "width": 64},
        outcome=outcome,
        metrics=measured if outcome is Outcome.COMPLETED else {},
        predicted=PredictedMemory(
            expected_bytes=GIB, low_bytes=GIB, high_bytes=GIB, phase="backward"
        ),
        message="" if outcome is Outcome.COMPLETED else "Traceback\nValueError: no",
        started_at=1_700_000_000.0 + number,
        duration_seconds=5.0,
        curve=tuple(CurvePoint(name="loss", num_tokens=n, value=9 / n) for n in (1, 2, 3)),
    )


TRIALS = [
    trial(0, 3.0, 100.0),
    trial(1, 1.0, 100.0),
    trial(2, 2.0, 200.0),
    trial(3, outcome=Outcome.OUT_OF_MEMORY),
    trial(4, outcome=Outcome.FAILED),
]


def runs_of(uri, recorder):
    """Runs by trial number, the parent under None; fails on two of one number."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("quick").experiment_id
    found = client.search_runs([experiment])
    counted = Counter(run.data.tags.get("paretune.trial") for run in found)
    assert set(counted.values()) <= {1}, counted
    runs = {run.data.tags.get("paretune.trial"): run for run in found}
    assert runs[None].info.run_id == recorder.parent_run_id
    return {None if key is None else int(key): run for key, run in runs.items()}


def recorded(uri, trials, **kwargs):
    recorder = Recorder.open(uri, SWEEP)
    for each in trials:
        recorder.record(each)
    recorder.finish(trials, **kwargs)
    assert recorder.close() is None
    return recorder


class Flaky:
    """A store's client that fails, before or after it has acted, for as long as it is told to."""

    def __init__(self, client):
        self.client = client
        self.down = False
        self.loses_answers_of = set()
        self.calls = Counter()

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*args, **kwargs):
            self.calls[name] += 1
            if self.down:
                msg = "the disk is full"
                raise OSError(msg)
            answer = method(*args, **kwargs)
            if name in self.loses_answers_of:
                self.loses_answers_of.remove(name)
                msg = "the answer is lost"
                raise ConnectionError(msg)
            return answer

        return call


@pytest.fixture
def flaky(store, monkeypatch):
    monkeypatch.setattr(record, "DOWN_SECONDS", 0.0)
    client = Flaky(open_client(store))
    runs = SweepRuns(client, SWEEP, experiment_id=open_experiment(client, SWEEP.name))
    return client, Recorder(runs, uri=store)


def test_a_sweep_is_one_parent_and_a_child_a_trial(store):
    recorder = recorded(store, TRIALS)
    runs = runs_of(store, recorder)
    assert set(runs) == {None, 0, 1, 2, 3, 4}
    for number, run in runs.items():
        assert run.data.tags["paretune.sweep"] == "quick"
        assert run.data.tags["mlflow.user"]
        if number is not None:
            assert run.data.tags["mlflow.parentRunId"] == recorder.parent_run_id
            assert recorder.run_id(number) == run.info.run_id


def test_a_child_holds_params_metrics_and_curve(store):
    run = runs_of(store, recorded(store, TRIALS))[1]
    assert run.data.params == {"rate": "0.001", "width": "64"}
    assert run.data.metrics == {
        "quality/loss": 1.0,
        "speed/tokens_per_second": 100.0,
        "memory/peak_gib": 1.0,
        "memory/predicted_gib": 1.0,
        "memory/predicted_high_gib": 1.0,
        "memory/error_percent": 0.0,
        "params/log10_rate": -3.0,
        "training/loss": 3.0,
    }
    curve = MlflowClient(store).get_metric_history(run.info.run_id, "training/loss")
    assert [(point.step, point.value) for point in curve] == [(1, 9.0), (2, 4.5), (3, 3.0)]
    assert (run.info.start_time, run.info.end_time) == (1_700_000_001_000, 1_700_000_006_000)


def test_status_outcome_and_front_are_told_of_each(store):
    runs = runs_of(store, recorded(store, TRIALS))
    told = {
        number: (
            run.info.status,
            run.data.tags["paretune.outcome"],
            run.data.tags["paretune.pareto"],
        )
        for number, run in runs.items()
        if number is not None
    }
    assert told == {
        0: ("FINISHED", "completed", "false"),
        1: ("FINISHED", "completed", "true"),
        2: ("FINISHED", "completed", "true"),
        3: ("FAILED", "out_of_memory", "false"),
        4: ("FAILED", "failed", "false"),
    }
    assert "ValueError: no" in runs[4].data.tags["mlflow.note.content"]
    assert runs[None].info.status == "FINISHED"


def test_the_parent_tells_the_story(store):
    refused = [trial(0, outcome=Outcome.PRUNED_BY_MEMORY)]
    recorder = recorded(store, TRIALS, refused=refused)
    parent = runs_of(store, recorder)[None]
    assert parent.data.metrics["counts/completed"] == 3
    assert parent.data.metrics["counts/pruned_by_memory"] == 1
    assert parent.data.metrics["summary/hypervolume"] > 0
    assert recorder.run_id(1) in parent.data.tags["mlflow.note.content"]
    assert parent.data.tags["paretune.provenance.corpus"] == "stdlib"
    client = MlflowClient(store)
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} == {
        "pareto.html",
        "pareto.png",
        "trials.json",
        "pruned_by_memory.csv",
        "sweep.yaml",
    }
    experiment = client.get_experiment_by_name("quick")
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "quality/loss"
    assert experiment.tags["mlflow.experiment.primaryMetric.greaterIsBetter"] == "false"
    assert "mlflow.sharedViewState.paretune-id-1" in experiment.tags
    assert recorder.url.endswith("&viewStateShareKey=paretune-id-1")
    assert parent.info.run_id in experiment.tags["mlflow.note.content"]


def test_what_was_refused_is_no_run(store):
    recorder = Recorder.open(store, SWEEP)
    recorder.record(trial(0, outcome=Outcome.PRUNED_BY_MEMORY))
    recorder.record(TRIALS[0])
    recorder.reconcile([TRIALS[0]])
    assert recorder.close() is None
    assert set(runs_of(store, recorder)) == {None, 0}


def test_only_events_with_a_trial_are_recorded(store):
    @dataclasses.dataclass
    class Event:
        trial: Trial | None

    recorder = Recorder.open(store, SWEEP)
    for event in (Event(TRIALS[0]), Event(None), "started"):
        recorder.record_event(event)
    recorder.close()
    assert set(runs_of(store, recorder)) == {None, 0}


def test_the_front_moves_while_the_sweep_runs(store):
    recorder = Recorder.open(store, SWEEP)
    recorder.reconcile([TRIALS[0]])
    assert runs_of(store, recorder)[0].data.tags["paretune.pareto"] == "true"
    recorder.reconcile(TRIALS[:2])
    runs = runs_of(store, recorder)
    assert runs[0].data.tags["paretune.pareto"] == "false"
    assert runs[1].data.tags["paretune.pareto"] == "true"
    recorder.close()


def test_writing_twice_changes_nothing(store):
    first = runs_of(store, recorded(store, TRIALS))
    again = runs_of(store, recorded(store, TRIALS))
    for number, run in first.items():
        assert again[number].info.run_id == run.info.run_id
        assert again[number].data.params == run.data.params
        assert again[number].data.metrics == run.data.metrics
    client = MlflowClient(store)
    for key in first[1].data.metrics:
        history = client.get_metric_history(first[1].info.run_id, key)
        assert len(history) == (3 if key == "training/loss" else 1)


@pytest.mark.parametrize("killed_before", ["log_batch", "set_terminated"])
def test_a_driver_killed_while_it_writes_leaves_one_run_of_one_set_of_values(store, killed_before):
    client = Flaky(open_client(store))
    runs = SweepRuns(client, SWEEP, experiment_id=open_experiment(client, SWEEP.name))
    client.loses_answers_of = {{"log_batch": "create_run"}.get(killed_before, "log_batch")}
    with pytest.raises(ConnectionError):
        runs.write(TRIALS[1])
    recorder = recorded(store, TRIALS)  # the driver that goes on
    run = runs_of(store, recorder)[1]
    assert run.info.status == "FINISHED"
    for key in run.data.metrics:
        history = MlflowClient(store).get_metric_history(run.info.run_id, key)
        assert len(history) == (3 if key == "training/loss" else 1)


def test_a_lost_answer_makes_no_second_run(flaky, store):
    client, recorder = flaky
    client.loses_answers_of = {"create_run"}
    recorder.record(TRIALS[0])
    recorder.record(TRIALS[1])
    assert recorder.close() is None
    assert set(runs_of(store, recorder)) == {None, 0, 1}


def test_of_two_runs_of_a_trial_one_is_kept(store):
    recorder = recorded(store, TRIALS)
    client = MlflowClient(store)
    tags = runs_of(store, recorder)[1].data.tags
    experiment = client.get_experiment_by_name("quick").experiment_id
    client.create_run(experiment, tags={k: tags[k] for k in tags if k.startswith("paretune.")})
    assert runs_of(store, recorded(store, TRIALS))[1].info.status == "FINISHED"


def test_a_run_that_no_trial_explains_does_not_run_for_ever(store):
    killed = Recorder.open(store, SWEEP)
    killed._runs._create(trial(9))
    assert runs_of(store, recorded(store, TRIALS))[9].info.status == "KILLED"


def test_a_run_that_was_deleted_is_written_again(store):
    recorder = recorded(store, TRIALS)
    MlflowClient(store).delete_run(recorder.run_id(1))
    again = recorded(store, TRIALS)
    assert again.run_id(1) != recorder.run_id(1)
    assert set(runs_of(store, again)) == {None, 0, 1, 2, 3, 4}


def test_two_sweeps_of_one_name_keep_their_runs_apart(store):
    first = recorded(store, TRIALS)
    other = Recorder.open(store, dataclasses.replace(SWEEP, sweep_id="id-2"))
    other.record(TRIALS[0])
    other.close()
    assert other.parent_run_id != first.parent_run_id
    assert other.run_id(0) != first.run_id(0)
    assert other.run_id(1) is None


@pytest.mark.parametrize("status", [RunStatus.KILLED, RunStatus.FAILED])
def test_a_sweep_that_ends_early_says_so_and_runs_again_when_resumed(store, status):
    recorder = recorded(store, TRIALS[:2], status=status)
    assert runs_of(store, recorder)[None].info.status == status
    resumed = Recorder.open(store, SWEEP)
    assert resumed.parent_run_id == recorder.parent_run_id
    assert runs_of(store, resumed)[None].info.status == "RUNNING"
    resumed.close()
    assert runs_of(store, resumed)[None].info.status == "KILLED"


def test_recording_waits_for_nothing(store):
    gate = threading.Event()

    class Slow(Flaky):
        def __getattr__(self, name):
            if name == "create_run" and threading.current_thread().name == "paretune-record":
                gate.wait()
            return super().__getattr__(name)

    client = Slow(open_client(store))
    runs = SweepRuns(client, SWEEP, experiment_id=open_experiment(client, SWEEP.name))
    recorder = Recorder(runs, uri=store)
    for each in TRIALS:
        recorder.record(each)
    assert set(runs_of(store, recorder)) == {None}
    gate.set()
    assert recorder.close() is None
    assert set(runs_of(store, recorder)) == {None, 0, 1, 2, 3, 4}


def test_a_store_that_fails_for_a_while_lacks_nothing_in_the_end(flaky, store):
    client, recorder = flaky
    recorder.reconcile(TRIALS[:1])
    client.down = True
    recorder.reconcile(TRIALS[:3])
    client.down = False
    recorder.finish(TRIALS)
    assert recorder.close() is None
    assert set(runs_of(store, recorder)) == {None, 0, 1, 2, 3, 4}


def test_a_store_that_stays_down_is_reported_and_written_by_the_next(flaky, store):
    client, recorder = flaky
    client.down = True
    for each in TRIALS:
        recorder.record(each)
    recorder.finish(TRIALS)
    unwritten = recorder.close()
    assert unwritten is not None
    assert {f"trial {each.number}" for each in TRIALS} < set(unwritten.what)
    assert str(unwritten).startswith("not written to MLflow: trial 0, ")
    assert unwritten.reason == "the disk is full"
    assert set(runs_of(store, recorded(store, TRIALS))) == {None, 0, 1, 2, 3, 4}


def test_a_store_that_is_down_is_not_asked_for_every_trial(flaky, monkeypatch):
    monkeypatch.setattr(record, "DOWN_SECONDS", 1e9)
    client, recorder = flaky
    client.down = True
    client.calls.clear()
    recorder.reconcile([trial(number) for number in range(50)])
    assert sum(client.calls.values()) == 1
    recorder.close()


def test_a_store_that_cannot_be_opened_stops_the_sweep_before_it_starts(tmp_path):
    (tmp_path / "mlflow.db").mkdir()
    with pytest.raises(MachineError):
        Recorder.open(f"sqlite:///{tmp_path}/mlflow.db", SWEEP)


def test_a_pick_moves_from_run_to_run_by_its_label(store):
    recorder = recorded(store, TRIALS)

    def mark(number, label):
        return mark_pick(store, sweep_name="quick", sweep_id="id-1", number=number, label=label)

    assert mark(1, "best") == recorder.run_id(1)
    mark(1, "cheap")
    mark(2, "best")
    marks = {
        number: run.data.tags.get("paretune.pick", "")
        for number, run in runs_of(store, recorder).items()
    }
    assert marks == {None: "", 0: "", 1: "cheap", 2: "best", 3: "", 4: ""}
    with pytest.raises(MachineError, match="no run of trial 77"):
        mark(77, "best")
