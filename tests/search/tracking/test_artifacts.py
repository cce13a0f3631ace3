from __future__ import annotations

import csv
import json

from search.metric import PEAK_MEMORY, Goal, Metric
from search.results import Outcome, PredictedMemory, Trial
from search.tracking.artifacts import write_artifacts
from search.tracking.entries import RecordedSweep
from search.tracking.summary import Summary
from search.units import GIB

LOSS = Metric(name="loss", goal=Goal.MIN)
SWEEP = RecordedSweep(
    name="quick",
    sweep_id="id-1",
    objectives=(LOSS, PEAK_MEMORY),
    metrics=(LOSS, PEAK_MEMORY),
    dimensions=("batch_size",),
)


def trial(number, outcome, **changes):
    return Trial(number=number, params={"batch_size": 2**number}, outcome=outcome, **changes)


SUMMARY = Summary(
    sweep=SWEEP,
    trials=(
        trial(0, Outcome.COMPLETED, metrics={"loss": 1.5, "peak_memory": 2.0 * GIB}),
        trial(1, Outcome.FAILED, message="Traceback\nValueError: no\n"),
    ),
    refused=(
        trial(
            3,
            Outcome.PRUNED_BY_MEMORY,
            predicted=PredictedMemory(
                expected_bytes=3 * GIB, low_bytes=2 * GIB, high_bytes=4 * GIB, phase="backward"
            ),
            message="needs 4 GiB, has 3 GiB",
        ),
        trial(4, Outcome.PRUNED_BY_MEMORY),
    ),
)


def test_the_files_of_a_sweep(tmp_path):
    tables = json.loads(write_artifacts(SUMMARY, tmp_path, run_ids={0: "abc"}))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"pareto.html", "pareto.png", "trials.json", "pruned_by_memory.csv"}
    assert tables == [{"path": "trials.json", "type": "table"}]


def test_the_table_has_every_trial_with_what_is_known(tmp_path):
    write_artifacts(SUMMARY, tmp_path, run_ids={0: "abc"})
    table = json.loads((tmp_path / "trials.json").read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert rows[0]["outcome"] == "completed"
    assert rows[0]["on_front"] is True
    assert rows[0]["batch_size"] == 1
    assert rows[0]["memory/peak_gib"] == 2.0
    assert rows[0]["run_id"] == "abc"
    assert rows[1]["quality/loss"] is None
    assert rows[1]["message"] == "ValueError: no"
    assert rows[1]["run_id"] is None


def test_what_was_refused_is_told_with_its_prediction(tmp_path):
    write_artifacts(SUMMARY, tmp_path, run_ids={})
    with (tmp_path / "pruned_by_memory.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "number": "3",
        "batch_size": "8",
        "predicted_gib": "3.0000",
        "low_gib": "2.0000",
        "high_gib": "4.0000",
        "phase": "backward",
        "reason": "needs 4 GiB, has 3 GiB",
    }
    assert rows[1]["predicted_gib"] == ""
