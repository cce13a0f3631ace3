"""What a trial is called in MLflow: its params, metrics, tags and status, without MLflow itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from search.metric import PEAK_MEMORY, Goal, Metric
from search.results import Outcome, ParamValue, Trial
from search.units import GIB

NOTE = "mlflow.note.content"
PARENT = "mlflow.parentRunId"
SWEEP = "paretune.sweep"
SWEEP_ID = "paretune.sweep_id"
TRIAL = "paretune.trial"
OUTCOME = "paretune.outcome"
ON_FRONT = "paretune.pareto"
PICK = "paretune.pick"

_BOOKKEEPING = frozenset({"pid", "threads", "held_bytes"})
"""Details of a trial that tell how it was run, not how it went."""
_TAG_CHARACTERS = 7000
"""How much of a traceback is kept, from its end. Source: MLflow 3.17 cuts tags at 8000."""


class RunStatus(StrEnum):
    """How a run ended, in MLflow's words."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSweep:
    """What the record says about a sweep as a whole.

    `objectives` are what the sweep trades, `metrics` all that its trials may report.
    `dimensions` are the searched ones, `log_dimensions` those among them with a log scale.
    `text` is the sweep file as it was read. `provenance` names data, versions and device.
    """

    name: str
    sweep_id: str
    objectives: tuple[Metric, ...]
    metrics: tuple[Metric, ...]
    dimensions: tuple[str, ...]
    log_dimensions: frozenset[str] = frozenset()
    text: str = ""
    description: str = ""
    provenance: Mapping[str, ParamValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricEntry:
    """One number of a run: `step` is the tokens trained on, 0 for what is final."""

    key: str
    value: float
    timestamp_ms: int
    step: int = 0


def run_name(trial: Trial) -> str:
    """`trial 007`: sorts by number up to a thousand."""
    return f"trial {trial.number:03d}"


def run_status(outcome: Outcome) -> RunStatus:
    """FINISHED for a trial that ended as planned, FAILED for one that could not go on."""
    planned = outcome in (Outcome.COMPLETED, Outcome.STOPPED_EARLY)
    return RunStatus.FINISHED if planned else RunStatus.FAILED


def metric_key(metric: Metric) -> str:
    """The metric's name in MLflow: its section, then its name; bytes are told in GiB."""
    if metric.name == PEAK_MEMORY.name:
        return "memory/peak_gib"
    return f"{metric.section}/{metric.name}{'_gib' if metric.unit == 'B' else ''}"


def metric_value(metric: Metric, value: float) -> float:
    """The value under `metric_key`: GiB for bytes, else as it is."""
    return value / GIB if metric.unit == "B" else value


def param_text(value: ParamValue) -> str:
    """A param's value for a table: six figures of a number, `true`, `false` or `none`."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def run_params(trial: Trial) -> dict[str, str]:
    """All params, flat, under their plain names."""
    return {name: param_text(value) for name, value in trial.params.items()}


def final_metrics(trial: Trial, sweep: RecordedSweep) -> dict[str, float]:
    """What is known of a trial at its end, whatever its outcome; left out: what is not finite.

    Numbers among the searched params are repeated, log ones as their logarithm to base 10: params
    are texts to MLflow, and its charts have no log axes. What was measured comes first: MLflow's
    page that compares runs draws the first metric that all of them have.
    """
    found = {
        **_measured_metrics(trial, sweep),
        **_memory_metrics(trial),
        **_param_metrics(trial, sweep),
        **_detail_metrics(trial),
    }
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _param_metrics(trial: Trial, sweep: RecordedSweep) -> dict[str, float]:
    found = {}
    for name in sweep.dimensions:
        value = trial.params.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name in sweep.log_dimensions:
            found[f"params/log10_{name}"] = math.log10(value)
        else:
            found[f"params/{name}"] = float(value)
    return found


def _measured_metrics(trial: Trial, sweep: RecordedSweep) -> dict[str, float]:
    known = {metric.name: metric for metric in (*sweep.metrics, *sweep.objectives)}
    named = (
        (known.get(name, Metric(name=name, goal=Goal.MIN, section="other")), value)
        for name, value in trial.metrics.items()
    )
    return {metric_key(metric): metric_value(metric, value) for metric, value in named}


def _memory_metrics(trial: Trial) -> dict[str, float]:
    """Predicted GiB, and how far above the measured peak in percent.

    Only a completed trial reached its peak: one cut short by the budget says nothing of errors.
    """
    if trial.predicted is None:
        return {}
    predicted_bytes = trial.predicted.expected_bytes
    found = {
        "memory/predicted_gib": predicted_bytes / GIB,
        "memory/predicted_high_gib": trial.predicted.high_bytes / GIB,
    }
    measured_bytes = trial.metrics.get(PEAK_MEMORY.name)
    if measured_bytes and trial.outcome is Outcome.COMPLETED:
        found["memory/error_percent"] = 100 * (predicted_bytes / measured_bytes - 1)
    return found


def _detail_metrics(trial: Trial) -> dict[str, float]:
    return {
        f"details/{name}": float(value)
        for name, value in trial.details.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in _BOOKKEEPING
    }


def metric_entries(trial: Trial, sweep: RecordedSweep) -> list[MetricEntry]:
    """Final metrics at step 0 and curves by tokens, with times that depend on the trial alone.

    Written twice they are the same entries. Left out: points of a curve that are not finite.
    """
    end_ms = end_time_ms(trial)
    finals = [
        MetricEntry(key=key, value=value, timestamp_ms=end_ms)
        for key, value in final_metrics(trial, sweep).items()
    ]
    return [*finals, *_curve_entries(trial)]


def _curve_entries(trial: Trial) -> Iterator[MetricEntry]:
    last_tokens = max((point.num_tokens for point in trial.curve), default=0)
    for point in trial.curve:
        if not math.isfinite(point.value):
            continue
        seconds = trial.duration_seconds * point.num_tokens / max(1, last_tokens)
        yield MetricEntry(
            key=f"training/{point.name.removeprefix('training_')}",
            value=point.value,
            timestamp_ms=round((trial.started_at + seconds) * 1000),
            step=point.num_tokens,
        )


def start_time_ms(trial: Trial) -> int:
    """When the trial started, milliseconds since the epoch."""
    return round(trial.started_at * 1000)


def end_time_ms(trial: Trial) -> int:
    """When the trial ended, milliseconds since the epoch."""
    return round((trial.started_at + trial.duration_seconds) * 1000)


def run_tags(trial: Trial, sweep: RecordedSweep, *, parent_run_id: str) -> dict[str, str]:
    """The tags of a trial's run; why it did not end as planned is its note."""
    tags = {
        **sweep_tags(sweep),
        PARENT: parent_run_id,
        TRIAL: str(trial.number),
        OUTCOME: trial.outcome.value,
        ON_FRONT: "false",
    }
    for name, value in trial.details.items():
        if isinstance(value, str | bool):
            tags[f"paretune.detail.{name}"] = param_text(value)[-_TAG_CHARACTERS:]
    if trial.message:
        tags[NOTE] = f"```\n{trial.message[-_TAG_CHARACTERS:]}\n```"
    return tags


def sweep_tags(sweep: RecordedSweep) -> dict[str, str]:
    """The tags that every run of a sweep carries, its parent too."""
    return {SWEEP: sweep.name, SWEEP_ID: sweep.sweep_id}
