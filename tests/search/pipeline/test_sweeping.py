"""What must hold around the trials: who drives, where the record is, what was trained on."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from search import home
from search.errors import InputError, MachineError
from search.memory import rates
from search.memory.device import Device
from search.memory.speed import Rates, Speed
from search.memory.speed_records import recorded_ratios
from search.pipeline import sweeping
from search.pipeline.showing import ledger_of, standing_of
from search.results import Outcome, Trial
from search.tracking.store import open_client
from search.trials.ledger import Ledger
from search.trials.placement import CpuSlot, allowed_cores

SWEEP = """\
name: one
objective: objectives.language_model:LanguageModel
data: {corpus: corpus.txt, held_out_tokens: 512, evaluation_context: 64}
space:
  learning_rate: [1e-3]
fixed: {batch_size: 2, sequence_length: 32, width: 32, depth: 1, heads: 2}
memory: {budget: 64 MiB}
trial: {tokens: 4096}
objectives: {bits_per_byte: min}
trials: 3
"""
PARETUNE = str(Path(sys.executable).with_name("paretune"))


def write_sweep(folder: Path) -> None:
    words = " ".join(f"{number} is followed by {number + 1}." for number in range(1_000))
    (folder / "corpus.txt").write_text(words, encoding="utf-8")
    (folder / "one.yaml").write_text(SWEEP, encoding="utf-8")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder in which a sweep of a single point ran, of the three trials it asked for."""
    folder = tmp_path_factory.mktemp("one")
    write_sweep(folder)
    subprocess.run([PARETUNE, "sweep", "one.yaml"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def ran(original, tmp_path, monkeypatch):
    """A copy of it, with a store of its own, as the working folder."""
    folder = tmp_path / "ran"
    shutil.copytree(original, folder)
    manifest = folder / ".paretune" / "one" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(original), str(folder)))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def empty(tmp_path, monkeypatch):
    write_sweep(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs_of(folder: Path):
    client = open_client(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("one")
    return client.search_runs([experiment.experiment_id])


def records_of(folder: Path) -> list[str]:
    file = folder / ".paretune" / "one" / "ledger.jsonl"
    return [json.loads(line)["record"] for line in file.read_text().splitlines()]


def test_a_space_that_is_used_up_is_the_end(ran, capsys):
    assert sorted(records_of(ran)) == ["exhausted", "finished", "started"]
    folder = home.open_home("one")
    assert standing_of(folder, ledger_of(folder)).state == "finished"
    sweeping.resume("one", address=None)
    assert "one is finished: nothing is left to run" in capsys.readouterr().out


def test_a_second_driver_is_refused_and_leaves_the_record_alone(ran):
    before = [(run.info.run_id, run.info.status, run.info.end_time) for run in runs_of(ran)]
    folder = home.open_home("one")
    folder.request_stop()
    with (
        Ledger(folder.folder).claim(),
        pytest.raises(MachineError, match="another process is running this sweep"),
    ):
        sweeping.resume("one", address=None)
    assert folder.stop_request.exists()  # it was meant for the first
    assert [(run.info.run_id, run.info.status, run.info.end_time) for run in runs_of(ran)] == before


def test_on_other_data_nothing_goes_on(ran):
    (ran / "corpus.txt").write_text("Something else. " * 2000)
    with pytest.raises(InputError, match=r"its data changed since it started \(sha256, .*restore"):
        sweeping.resume("one", address=None)


def test_a_lost_store_is_written_again(ran):
    (ran / "mlflow.db").unlink()
    sweeping.resume("one", address=None)
    assert sorted(run.data.tags.get("paretune.trial", "parent") for run in runs_of(ran)) == [
        "0",
        "parent",
    ]
    assert {run.info.status for run in runs_of(ran)} == {"FINISHED"}


def test_without_a_store_no_sweep_begins(empty, monkeypatch):
    (empty / "file").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{empty}/file/mlflow.db")
    with pytest.raises(MachineError, match="MLflow store"):
        sweeping.sweep(Path("one.yaml"), address=None)
    assert home.names() == []
    assert not (empty / ".paretune" / "one").exists()


KILLED_WITH_A_PARENT_RUN = """\
import os, signal
from pathlib import Path
from search.pipeline import sweeping
sweeping._closing = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sweeping.sweep(Path("one.yaml"), address=None)
"""


def test_killed_before_its_first_trial_it_goes_on_in_the_same_parent_run(empty):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WITH_A_PARENT_RUN],
        cwd=empty,
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert [run.info.status for run in runs_of(empty)] == ["RUNNING"]
    assert home.names() == ["one"]
    subprocess.run([PARETUNE, "sweep", "--resume", "one"], check=True, capture_output=True)
    assert [run.info.status for run in runs_of(empty)] == ["FINISHED"] * 2


def test_where_no_core_is_free_nothing_is_begun(tmp_path, monkeypatch):
    write_sweep(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARETUNE_SLOTS", str(tmp_path / "slots"))
    held = [CpuSlot.claim(cpus=1, among=[core]) for core in allowed_cores()]
    with pytest.raises(MachineError, match="hold the cores"):
        sweeping.sweep(Path("one.yaml"), address=None)
    for slot in held:
        slot.release()
    assert not (tmp_path / ".paretune" / "one").exists()
    assert not (tmp_path / "mlflow.db").exists()


class KnownWorks:
    """Predicts the speed of what was traced: all but width 3."""

    def known_speed(self, params, rates):
        if params["width"] == 3:
            return None
        value = 10.0 * params["width"] * rates.bandwidth_bytes_per_second
        return Speed(
            low_tokens_per_second=value / 2,
            expected_tokens_per_second=value,
            high_tokens_per_second=value * 2,
        )


def trial(number, outcome=Outcome.COMPLETED, **metrics):
    return Trial(number=number, params={"width": number}, outcome=outcome, metrics=metrics)


def test_speeds_of_completed_trials_are_kept_beside_their_estimates(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = Rates(flops_per_second={"fp32": 1.0}, bandwidth_bytes_per_second=2.0)
    monkeypatch.setattr(rates, "rates_here", lambda _: here)
    stage = SimpleNamespace(
        device=Device(name="Some CPU", kind="cpu", capacity_bytes=2**30),
        slots=SimpleNamespace(cpus=1),
        predict=KnownWorks(),
    )
    trials = [
        trial(1, tokens_per_second=10.0),  # estimated at 20
        trial(2, tokens_per_second=80.0),  # at 40
        trial(3, tokens_per_second=1.0),
        trial(4),
        trial(5, Outcome.DIVERGED, tokens_per_second=1.0),
    ]
    for _ in range(2):  # as of a sweep that was resumed
        sweeping.learn_speeds(stage, "one", trials)
    ratios = recorded_ratios(stage.device, basis=rates.Basis.MEASURED, cpus=1)
    assert ratios == (0.5, 2.0)
    assert recorded_ratios(stage.device, basis=rates.Basis.DATA_SHEET, cpus=1) == ()
