"""What is told of a sweep as a whole: counts, the front, and its story in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search.metric import Metric
from search.pareto import front_mask, hypervolume, reference_point
from search.results import Outcome, Trial
from search.tracking.entries import RecordedSweep, metric_key, metric_value, param_text
from search.tracking.pages import run_link
from search.units import format_value

_NOTE_ROWS = 20
_ARTIFACTS_HINT = (
    "All trials, the chart and what was refused are among the artifacts: `pareto.html`,"
    " `trials.json`, `pruned_by_memory.csv`, `sweep.yaml`."
)
_OUTCOME_WORDS = {
    Outcome.COMPLETED: "completed",
    Outcome.STOPPED_EARLY: "stopped early",
    Outcome.OUT_OF_MEMORY: "ran out of memory",
    Outcome.DIVERGED: "diverged",
    Outcome.TIMED_OUT: "timed out",
    Outcome.FAILED: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A sweep with all that came of it: launched trials, and those the memory gate refused."""

    sweep: RecordedSweep
    trials: tuple[Trial, ...]
    refused: tuple[Trial, ...]


def measured_trials(
    trials: Sequence[Trial], metrics: tuple[Metric, ...]
) -> list[tuple[Trial, tuple[float, ...]]]:
    """Completed trials with a finite value of every metric, and the values: lower is better."""
    paired = ((trial, trial.measured(metrics)) for trial in trials)
    return [(trial, values) for trial, values in paired if values is not None]


def front_numbers(trials: Sequence[Trial], metrics: tuple[Metric, ...]) -> frozenset[int]:
    """The numbers of the trials on the front."""
    measured = measured_trials(trials, metrics)
    mask = front_mask([values for _, values in measured])
    return frozenset(
        trial.number for (trial, _), on_front in zip(measured, mask, strict=True) if on_front
    )


def summary_metrics(summary: Summary) -> dict[str, float]:
    """Counts of every outcome, size and hypervolume of the front, and the best of each objective.

    The hypervolume is in the product of the objectives' units, below `search.pareto`'s reference
    point of this sweep's completed trials: it compares with no other sweep's.
    """
    counted = Counter(trial.outcome for trial in summary.trials)
    counted[Outcome.PRUNED_BY_MEMORY] = len(summary.refused)
    found = {f"counts/{outcome.value}": float(counted[outcome]) for outcome in Outcome}
    objectives = summary.sweep.objectives
    points = [values for _, values in measured_trials(summary.trials, objectives)]
    if not points:
        return found
    found["summary/num_on_front"] = float(front_mask(points).sum())
    found["summary/hypervolume"] = hypervolume(points, reference_point(points))
    for metric, column in zip(objectives, zip(*points, strict=True), strict=True):
        name = metric_key(metric).partition("/")[2]
        found[f"summary/best_{name}"] = metric_value(metric, metric.oriented(min(column)))
    return found


def summary_note(summary: Summary, *, run_ids: Mapping[int, str], experiment_id: str) -> str:
    """The story of the sweep in Markdown: what happened, and the front with links to its runs."""
    sweep = summary.sweep
    on_front = front_numbers(summary.trials, sweep.objectives)
    front = [trial for trial in summary.trials if trial.number in on_front]
    front.sort(
        key=lambda trial: sweep.objectives[0].oriented(trial.metrics[sweep.objectives[0].name])
    )
    goals = ", ".join(f"`{metric.name}` ({metric.goal})" for metric in sweep.objectives)
    lines = [
        *([sweep.description, ""] if sweep.description else []),
        f"**{sweep.name}**: {_story(summary)}",
        "",
        f"{len(front)} on the Pareto front of {goals}:",
        "",
        *_front_table(front[:_NOTE_ROWS], sweep, run_ids=run_ids, experiment_id=experiment_id),
        "",
        _ARTIFACTS_HINT,
    ]
    return "\n".join(lines)


def _story(summary: Summary) -> str:
    counted = Counter(trial.outcome for trial in summary.trials)
    parts = [
        f"{counted[outcome]} {words}"
        for outcome, words in _OUTCOME_WORDS.items()
        if counted[outcome]
    ]
    launched = f"{len(summary.trials)} trials ({', '.join(parts)})" if parts else "no trials"
    return (
        f"{launched}; {len(summary.refused)} configurations refused, as they would not have fitted."
    )


def _front_table(
    front: Sequence[Trial], sweep: RecordedSweep, *, run_ids: Mapping[int, str], experiment_id: str
) -> list[str]:
    names = [*sweep.dimensions, *(metric.name for metric in sweep.objectives)]
    rows = [["trial", *names], ["---"] * (len(names) + 1)]
    for trial in front:
        name, run_id = str(trial.number), run_ids.get(trial.number)
        rows.append(
            [
                f"[{name}]({run_link(experiment_id, run_id)})" if run_id else name,
                *(param_text(trial.params.get(name)) for name in sweep.dimensions),
                *(format_value(trial.metrics[m.name], m.unit) for m in sweep.objectives),
            ]
        )
    return [f"| {' | '.join(row)} |" for row in rows]
