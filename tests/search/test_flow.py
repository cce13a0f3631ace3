"""The whole product as a person uses it: the command line, real Ray, a real MLflow store."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from search.tracking.store import open_client

SWEEP = """\
name: flow
objective: objectives.language_model:LanguageModel
data: {{corpus: corpus.txt, held_out_tokens: 2048, evaluation_context: 64}}
space:
  learning_rate: [1e-3, 1e-2]
  batch_size: [2, 256, 512]
  sequence_length: [32, 64]
fixed: {{width: 32, depth: 1, heads: 2}}
memory: {{budget: 32 MiB{memory}}}
trial: {{tokens: {tokens}}}
objectives: {{bits_per_byte: min, tokens_per_second: max, peak_memory: min}}
trials: {trials}
"""
PARETUNE = [str(Path(sys.executable).with_name("paretune"))]


def write_sweep(folder: Path, *, trials=4, tokens=32_768, memory=""):
    words = " ".join(f"{number} is followed by {number + 1}." for number in range(4_000))
    (folder / "corpus.txt").write_text(words, encoding="utf-8")
    text = SWEEP.format(trials=trials, tokens=tokens, memory=memory)
    (folder / "flow.yaml").write_text(text, encoding="utf-8")


def run(folder: Path, *arguments, code=0):
    done = subprocess.run(
        [*PARETUNE, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def runs_in_mlflow(folder: Path):
    client = open_client(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("flow")
    return client.search_runs([experiment.experiment_id], max_results=1000)


def ledger(folder: Path):
    file = folder / ".paretune" / "flow" / "ledger.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flow")
    write_sweep(folder)
    output = run(folder, "sweep", "flow.yaml")
    return folder, output


def test_a_sweep_trains_what_fits_and_says_how_it_ended(finished):
    folder, output = finished
    assert "finished, 4 of 4 trials: 4 completed" in output
    assert "0 out of memory" in output
    outcomes = [record["record"] for record in ledger(folder)]
    assert outcomes.count("finished") == 4
    assert outcomes.count("refused") > 0


def test_every_trial_is_one_mlflow_run_below_the_parent(finished):
    runs = runs_in_mlflow(finished[0])
    parent = [found for found in runs if "mlflow.parentRunId" not in found.data.tags]
    children = [found for found in runs if "mlflow.parentRunId" in found.data.tags]
    assert len(parent) == 1
    assert sorted(found.data.tags["paretune.trial"] for found in children) == ["0", "1", "2", "3"]
    assert {found.info.status for found in runs} == {"FINISHED"}
    keys = {frozenset(found.data.metrics) for found in children}
    assert len(keys) == 1
    assert {"quality/bits_per_byte", "memory/peak_gib", "memory/predicted_gib"} <= set(*keys)


def test_plan_judges_every_structure_without_training(finished):
    planned = json.loads(run(finished[0], "plan", "flow.yaml", "--json"))
    points = {
        (row["point"]["batch_size"], row["point"]["sequence_length"]): row["fits"]
        for row in planned["points"]
    }
    assert len(points) == 6
    assert planned["share_that_fits"] == pytest.approx(2 / 6)
    assert {point for point, fits in points.items() if fits} == {(2, 32), (2, 64)}
    for row in planned["points"]:
        assert (row["mend"] is None) == row["fits"]
        if row["mend"]:  # the same batch in smaller parts, hardly slower
            (change,) = row["mend"]["change"]
            assert change == "micro_batch_size"
            assert row["mend"]["high_bytes"] <= planned["budget_bytes"] < row["high_bytes"]
            assert 0.9 < row["mend"]["estimated_slow_down"] < 2


def test_what_is_rescued_fits_with_its_whole_batch(finished, tmp_path):
    write_sweep(tmp_path, memory=", rescue: true")
    rescued = json.loads(run(tmp_path, "plan", "flow.yaml", "--json"))
    plain = json.loads(run(finished[0], "plan", "flow.yaml", "--json"))
    assert rescued["share_that_fits"] == 1
    for row, before in zip(rescued["points"], plain["points"], strict=True):
        assert row["point"] == before["point"]
        change = before["mend"]["change"] if before["mend"] else {}
        assert row["rescued"] == " ".join(f"{name} {value}" for name, value in change.items())


def test_list_and_status_tell_how_it_stands(finished):
    (row,) = json.loads(run(finished[0], "list", "--json"))
    assert (row["name"], row["state"], row["done"]) == ("flow", "finished", 4)
    assert json.loads(run(finished[0], "status", "flow", "--json")) == row
    assert "finished" in run(finished[0], "status", "flow")


def test_front_pick_export_and_train_hand_back_a_production_run(finished):
    folder = finished[0]
    front = json.loads(run(folder, "front", "flow", "--json"))["trials"]
    chosen = json.loads(
        run(
            folder,
            "pick",
            "flow",
            "--minimize",
            "bits_per_byte",
            "--where",
            "peak_memory < 1 GiB",
            "--json",
        )
    )
    best = min(front, key=lambda trial: trial["metrics"]["bits_per_byte"])
    assert chosen["trial"] == best["trial"]
    run(folder, "export", "flow", "-o", "PICK.yaml")
    output = run(folder, "train", "PICK.yaml", "--output", "trained")
    assert "bits_per_byte" in output
    assert (folder / "trained" / "model.pt").is_file()
    trained = [
        found for found in runs_in_mlflow(folder) if "paretune.production" in found.data.tags
    ]
    assert trained[0].data.metrics["quality/bits_per_byte"] == pytest.approx(
        best["metrics"]["bits_per_byte"], rel=1e-4
    )
    picked = [found for found in runs_in_mlflow(folder) if "paretune.pick" in found.data.tags]
    assert [found.data.tags["paretune.trial"] for found in picked] == [str(best["trial"])]


def test_a_pick_nothing_satisfies_says_why(finished):
    output = run(finished[0], "pick", "flow", "--where", "peak_memory < 1 KiB", code=2)
    assert "peak_memory < 1 KiB" in output
    assert "Traceback" not in output


def test_a_finished_sweep_is_not_run_again(finished):
    folder = finished[0]
    before = ledger(folder)
    assert "is finished" in run(folder, "sweep", "--resume", "flow")
    assert ledger(folder) == before
    assert "--resume flow" in run(folder, "sweep", "flow.yaml", code=2)


def test_bad_input_names_every_fault_and_leaves_nothing_behind(tmp_path):
    write_sweep(tmp_path)
    file = tmp_path / "flow.yaml"
    file.write_text(
        file.read_text().replace("sequence_length", "sequnce_length").replace("min", "mix")
    )
    before = sorted(tmp_path.rglob("*"))
    output = run(tmp_path, "sweep", "flow.yaml", code=2)
    assert "sequence_length" in output
    assert "Traceback" not in output
    assert sorted(tmp_path.rglob("*")) == before


def test_without_the_gate_memory_runs_out_and_the_sweep_goes_on(tmp_path):
    write_sweep(tmp_path, trials=12, memory=", gate: false")
    run(tmp_path, "sweep", "flow.yaml")
    trials = [record["trial"] for record in ledger(tmp_path) if record["record"] == "finished"]
    outcomes = [trial["outcome"] for trial in trials]
    assert outcomes.count("out_of_memory") == 8
    assert outcomes.count("completed") == 4
    assert all(trial["predicted"] for trial in trials)
    lost = [trial for trial in trials if trial["outcome"] == "out_of_memory"]
    assert all(trial["predicted"]["expected_bytes"] > 32 * 2**20 for trial in lost)


def started(folder: Path, *arguments):
    return subprocess.Popen(
        [*PARETUNE, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def wait_for_finished(process, count: int):
    """Reads the driver's lines until that many trials ended; the pipe is the clock."""
    seen = 0
    for line in process.stdout:
        seen += " completed:" in line
        if seen == count:
            return
    pytest.fail("the sweep ended before it could be interrupted")


@pytest.fixture
def interrupted(tmp_path):
    write_sweep(tmp_path, trials=4, tokens=120_000)
    with started(tmp_path, "sweep", "flow.yaml") as process:
        wait_for_finished(process, 1)
        yield tmp_path, process
        process.kill()


def assert_each_trial_once(folder: Path, num_trials: int, before: list):
    records = ledger(folder)
    done = [record["trial"]["number"] for record in records if record["record"] == "finished"]
    assert sorted(done) == list(range(num_trials))
    assert records[: len(before)] == before
    runs = runs_in_mlflow(folder)
    numbers = [
        found.data.tags["paretune.trial"] for found in runs if "paretune.trial" in found.data.tags
    ]
    assert sorted(map(int, numbers)) == list(range(num_trials))
    assert {found.info.status for found in runs} == {"FINISHED"}


def test_a_killed_sweep_resumes_and_loses_nothing(interrupted):
    folder, process = interrupted
    process.kill()
    process.wait()
    before = ledger(folder)
    assert json.loads(run(folder, "status", "flow", "--json"))["state"] == "interrupted"
    run(folder, "sweep", "--resume", "flow")
    assert_each_trial_once(folder, 4, before)


def test_an_interrupted_sweep_keeps_what_is_done_and_resumes(interrupted):
    folder, process = interrupted
    process.send_signal(signal.SIGINT)
    assert "paretune sweep --resume flow" in process.stdout.read()
    assert process.wait() == 130
    before = ledger(folder)
    run(folder, "sweep", "--resume", "flow")
    assert_each_trial_once(folder, 4, before)
