"""What is deployed, as a person gets there: a sweep on real Ray, its front, a pick, its model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from search.compression.trained import load_trained
from search.tracking.store import open_client

SWEEP = """\
name: {name}
objective: objectives.language_model:LanguageModel
data: {{corpus: corpus.txt, held_out_tokens: 2048, evaluation_context: 64}}
fixed: {{width: 32, depth: 1, heads: 2, sequence_length: 32, batch_size: 8, learning_rate: 1e-2}}
compression: {compression}
memory: {{budget: 40 MiB}}
trial: {{tokens: 2_048}}
objectives: {{bits_per_byte_after: min, serving_memory: min, model_size: min}}
trials: {trials}
"""
SMALLER = "{pruned_channels: [0, 0.5], quantization: [none, int8-weight-only]}"
TAUGHT = "{teacher: smaller, distillation_weight: [0.5]}"
PARETUNE = str(Path(sys.executable).with_name("paretune"))


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [PARETUNE, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sweep(folder: Path, name: str, *, compression: str, trials: int) -> str:
    text = SWEEP.format(name=name, compression=compression, trials=trials)
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return run(folder, "sweep", f"{name}.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    words = " ".join(f"{number} is followed by {number + 1}." for number in range(4_000))
    (folder / "corpus.txt").write_text(words, encoding="utf-8")
    output = sweep(folder, "smaller", compression=SMALLER, trials=4)
    assert "finished, 4 of 4 trials: 4 completed" in output
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """The folder, once its smallest model is picked and trained."""
    run(folder, "pick", "smaller", "--minimize", "model_size", "--where", "latency <= 1 min")
    run(folder, "export", "smaller", "-o", "PICK.yaml")
    run(folder, "train", "PICK.yaml")
    return folder


def trials(folder: Path, name: str):
    ledger = folder / ".paretune" / name / "ledger.jsonl"
    records = map(json.loads, ledger.read_text(encoding="utf-8").splitlines())
    return [record["trial"] for record in records if record["record"] == "finished"]


def test_the_front_trades_accuracy_against_what_serving_takes(folder):
    front = json.loads(run(folder, "front", "smaller", "--json"))
    assert [metric["name"] for metric in front["metrics"]] == [
        *("bits_per_byte_after", "serving_memory", "model_size")
    ]
    smallest = min(trials(folder, "smaller"), key=lambda trial: trial["metrics"]["model_size"])
    assert smallest["params"]["pruned_channels"] == 0.5
    assert smallest["params"]["quantization"] == "int8-weight-only"
    assert smallest["number"] in [trial["trial"] for trial in front["trials"]]
    assert "KiB" in run(folder, "front", "smaller")


def test_memory_of_all_trials_was_predicted_with_what_serves(folder):
    for trial in trials(folder, "smaller"):
        assert trial["metrics"]["peak_memory"] <= trial["predicted"]["high_bytes"]
        assert trial["metrics"]["serving_memory"] <= trial["metrics"]["peak_memory"]


def test_mlflow_has_what_was_measured_in_sections(folder):
    client = open_client(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("smaller")
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    metrics = next(found.data.metrics for found in runs if "paretune.trial" in found.data.tags)
    assert {
        *("quality/bits_per_byte_after", "serving/model_size_gib", "serving/latency"),
        *("serving/serving_memory_gib", "serving/serving_throughput", "details/latency_spread"),
    } <= metrics.keys()


def test_the_production_model_is_the_small_one(trained, monkeypatch):
    monkeypatch.chdir(trained)
    model = load_trained(".paretune/trained/PICK")
    assert len(model.blocks[0].feed_forward[0].weight) == 64  # of 128
    with torch.no_grad():
        assert model(torch.zeros(1, 8, dtype=torch.int64)).shape == (1, 8, 256)
    size = (trained / ".paretune" / "trained" / "PICK" / "compressed.pt").stat().st_size
    best = min(trial["metrics"]["model_size"] for trial in trials(trained, "smaller"))
    assert size == best


def test_a_trained_pick_teaches_another_sweep(trained):
    output = sweep(trained, "taught", compression=TAUGHT, trials=1)
    assert "finished, 1 of 1 trials: 1 completed" in output
    trial = trials(trained, "taught")[0]
    assert trial["params"]["distillation_weight"] == 0.5
    manifest = json.loads((trained / ".paretune" / "taught" / "manifest.json").read_text())
    assert manifest["provenance"]["teacher"].startswith("smaller, weights ")
