"""What MLflow's page shows of a sweep's experiment: its trials, their columns and their charts.

Without a view of ours MLflow 3.17 opens on one folded row, the parent, and draws ten runs with a
bar chart for every metric. Ours is written as its page would save it under "Views".
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from search.metric import PEAK_MEMORY, Goal
from search.tracking import entries
from search.tracking.entries import RecordedSweep, metric_key

_PRIMARY_METRIC = "mlflow.experiment.primaryMetric"
_MODEL_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
"""Opens the UI on runs and charts. Source: MLflow 3.17's page; without it, it opens on traces."""

_NOTE_START = "The latest sweep here: "
_VIEW = "mlflow.sharedViewState."
_OURS = "paretune-"
_COMPRESSED = "deflate;"
_RUNS_SHOWN = 100
"""Runs that MLflow's page loads at once."""

_MEMORY = (metric_key(PEAK_MEMORY), "memory/predicted_gib")
_PARAMS_SECTION = "paretune-params"
_OBJECTIVES_SECTION = "paretune-objectives"


def experiment_tags(
    sweep: RecordedSweep, before: Mapping[str, str], *, parent_link: str, now_ms: int
) -> dict[str, str]:
    """The tags of a sweep's experiment: its kind, first objective, view, and a note on the parent.

    Args:
        sweep: the latest sweep in it.
        before: the tags it has; a note that somebody wrote stays.
        parent_link: to the sweep's own run.
        now_ms: milliseconds since the epoch.
    """
    first = sweep.objectives[0]
    tags = {
        **_MODEL_TRAINING,
        f"{_PRIMARY_METRIC}.name": metric_key(first),
        f"{_PRIMARY_METRIC}.greaterIsBetter": entries.param_text(first.goal is Goal.MAX),
        f"{_VIEW}{view_key(sweep)}": _view(sweep, now_ms=now_ms),
    }
    if before.get(entries.NOTE, _NOTE_START).startswith(_NOTE_START):
        tags[entries.NOTE] = f"{_NOTE_START}[story, chart and tables]({parent_link})"
    return tags


def view_key(sweep: RecordedSweep) -> str:
    """What a link names the sweep's view by."""
    return f"{_OURS}{sweep.sweep_id}"


def latest_view(tags: Mapping[str, str]) -> str:
    """The key of the newest sweep's view among an experiment's tags; empty, if it has none."""
    start = f"{_VIEW}{_OURS}"
    made = {
        key.removeprefix(_VIEW): json.loads(text)["createdAt"]
        for key, text in tags.items()
        if key.startswith(start)
    }
    return max(made, key=lambda key: made[key], default="")


def _view(sweep: RecordedSweep, *, now_ms: int) -> str:
    """Name, times and packed state, as MLflow 3.17's page reads them.

    Compressed, as a tag of an experiment holds 20000 characters.
    Source: that page: JSON, or zlib's format of it in base64 behind `deflate;`.
    """
    state = json.dumps(_state(sweep), separators=(",", ":")).encode()
    packed = _COMPRESSED + base64.b64encode(zlib.compress(state, 9)).decode()
    return json.dumps(
        {"name": sweep.name, "createdAt": now_ms, "updatedAt": now_ms, "state": packed}
    )


def _state(sweep: RecordedSweep) -> dict[str, Any]:
    first = sweep.objectives[0]
    columns = _columns(sweep)
    return {
        "searchFilter": f"tags.`{entries.SWEEP_ID}` = '{sweep.sweep_id}'"
        f" and tags.`{entries.TRIAL}` != ''",
        "orderByKey": _canonical("metrics", metric_key(first)),
        "orderByAsc": first.goal is Goal.MIN,
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {column: _width(column) for column in columns},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": _charts(sweep),
        "compareRunSections": [
            _section(_PARAMS_SECTION, "From parameters to objectives", columns=1),
            _section(_OBJECTIVES_SECTION, "Objectives against each other", columns=3),
        ],
        "isAccordionReordered": True,
    }


def _canonical(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _columns(sweep: RecordedSweep) -> list[str]:
    metrics = dict.fromkeys((*map(metric_key, sweep.objectives), *_MEMORY))
    return [
        *(_canonical("metrics", name) for name in metrics),
        *(_canonical("params", name) for name in sweep.dimensions),
        *(_canonical("tags", name) for name in (entries.ON_FRONT, entries.OUTCOME, entries.PICK)),
    ]


def _width(column: str) -> int:
    """Pixels that hold the column's name, and a number or a word below it."""
    name = column.partition(".")[2].strip("`")
    return max(100, 7 * len(name) + 28)


def _charts(sweep: RecordedSweep) -> list[dict[str, Any]]:
    keys = [metric_key(metric) for metric in sweep.objectives]
    logs = [name for name in sweep.dimensions if name in sweep.log_dimensions]
    lines = _chart(0, "PARALLEL", _PARAMS_SECTION) | {
        "selectedParams": [name for name in sweep.dimensions if name not in logs],
        # The page colours the lines by the last one.
        "selectedMetrics": [*(f"params/log10_{name}" for name in logs), *reversed(keys)],
        "showAllRuns": True,
    }
    points = [
        _chart(number, "SCATTER", _OBJECTIVES_SECTION) | {"xaxis": _axis(x), "yaxis": _axis(y)}
        for number, (y, x) in enumerate(combinations(keys, 2), start=1)
    ]
    return [lines, *points]


def _chart(number: int, kind: str, section: str) -> dict[str, Any]:
    return {
        "uuid": f"paretune-{number}",
        "type": kind,
        "metricSectionId": section,
        "runsCountToCompare": _RUNS_SHOWN,
        "deleted": False,
        "isGenerated": False,
    }


def _axis(key: str) -> dict[str, str]:
    return {"key": key, "type": "METRIC"}


def _section(section: str, name: str, *, columns: int) -> dict[str, Any]:
    return {
        "uuid": section,
        "name": name,
        "display": True,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
        "columns": columns,
        "cardHeight": 360,
    }
