"""The files kept with a sweep: the chart twice, and tables of trials and of what was refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from search.results import ParamValue, Trial
from search.tracking.charts import pareto_html, pareto_png
from search.tracking.entries import final_metrics, param_text
from search.tracking.summary import Summary, front_numbers
from search.units import GIB

TRIALS_FILE = "trials.json"


def write_artifacts(summary: Summary, folder: Path, *, run_ids: Mapping[int, str]) -> str:
    """Writes the files into `folder`; gives MLflow's tag value that says which is a table."""
    objectives = summary.sweep.objectives
    html = pareto_html(summary.trials, objectives, title=summary.sweep.name)
    (folder / "pareto.html").write_text(html, encoding="utf-8")
    pareto_png(summary.trials, objectives, folder / "pareto.png", title=summary.sweep.name)
    table = trials_table(summary, run_ids=run_ids)
    (folder / TRIALS_FILE).write_text(json.dumps(table), encoding="utf-8")
    _write_refused(summary.refused, folder / "pruned_by_memory.csv")
    return json.dumps([{"path": TRIALS_FILE, "type": "table"}])


def trials_table(summary: Summary, *, run_ids: Mapping[int, str]) -> dict[str, list[object]]:
    """All launched trials, in the layout that MLflow previews as a table: `columns` and `data`."""
    on_front = front_numbers(summary.trials, summary.sweep.objectives)
    rows = [
        {
            "trial": trial.number,
            "outcome": trial.outcome.value,
            "on_front": trial.number in on_front,
            **trial.params,
            **{
                key: value
                for key, value in final_metrics(trial, summary.sweep).items()
                if not key.startswith("params/")
            },
            "seconds": round(trial.duration_seconds, 3),
            "message": trial.message.strip().rpartition("\n")[2],
            "run_id": run_ids.get(trial.number),
        }
        for trial in summary.trials
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {
        "columns": list(columns),
        "data": [[row.get(name) for name in columns] for row in rows],
    }


def _write_refused(refused: tuple[Trial, ...], path: Path) -> None:
    names = list(dict.fromkeys(name for trial in refused for name in trial.params))
    head = ["predicted_gib", "low_gib", "high_gib", "phase", "reason"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", *names, *head])
        for trial in refused:
            params = [param_text(trial.params.get(name)) for name in names]
            writer.writerow([trial.number, *params, *_predicted_cells(trial), trial.message])


def _predicted_cells(trial: Trial) -> list[ParamValue]:
    predicted = trial.predicted
    if predicted is None:
        return ["", "", "", ""]
    sizes = (predicted.expected_bytes, predicted.low_bytes, predicted.high_bytes)
    return [*(f"{size / GIB:.4f}" for size in sizes), predicted.phase]
