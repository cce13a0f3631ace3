"""The Pareto front of a sweep: its trials, as a table and as a chart for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.metric import Goal, Metric
from search.pareto import front_mask
from search.results import Trial
from search.units import format_figure, format_value, heading, shown

if TYPE_CHECKING:
    from rich.table import Table

_LOG_SPREAD = 30.0
"""Largest over smallest value from which on a chart's axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The completed trials that no other completed trial beats in every metric.

    `trials` are sorted from the best of the first metric on, `others` are the completed trials that
    are beaten, in the order in which they ran.
    """

    metrics: tuple[Metric, ...]
    trials: tuple[Trial, ...]
    others: tuple[Trial, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for scripts: metrics in base units, trials from the best of the first on."""
        return {
            "metrics": [
                {"name": metric.name, "goal": metric.goal.value, "unit": metric.unit}
                for metric in self.metrics
            ],
            "num_completed": len(self.trials) + len(self.others),
            "trials": [trial_json(trial) for trial in self.trials],
        }


def trial_json(trial: Trial) -> dict[str, Any]:
    """A trial's number, params, metrics and predicted bytes, for scripts."""
    predicted = trial.predicted
    return {
        "trial": trial.number,
        "params": dict(trial.params),
        "metrics": dict(trial.metrics),
        "predicted_bytes": predicted.expected_bytes if predicted else None,
    }


def front_of(trials: Sequence[Trial], metrics: tuple[Metric, ...]) -> Front:
    """The front of those trials that completed and have a finite value of every metric."""
    measured = [
        (values, trial) for trial in trials if (values := trial.measured(metrics)) is not None
    ]
    mask = front_mask([values for values, _ in measured])
    on_front = [pair for pair, on in zip(measured, mask, strict=True) if on]
    on_front.sort(key=lambda pair: (pair[0], pair[1].number))
    return Front(
        metrics=metrics,
        trials=tuple(trial for _, trial in on_front),
        others=tuple(trial for (_, trial), on in zip(measured, mask, strict=True) if not on),
    )


def render_front(front: Front, dimensions: Sequence[str]) -> Table:
    """The front as a table: trial, metrics with the best of each in bold, searched dimensions."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("trial", justify="right")
    for metric in front.metrics:
        table.add_column(f"{heading(metric.name)} {arrow(metric)}", justify="right", no_wrap=True)
    for name in dimensions:
        table.add_column(heading(name), justify="right", style="dim", no_wrap=True)
    best = {metric.name: best_value(front.trials, metric) for metric in front.metrics}
    for trial in front.trials:
        cells = [_metric_cell(trial, metric, best[metric.name]) for metric in front.metrics]
        params = [shown(trial.params.get(name)) for name in dimensions]
        table.add_row(str(trial.number), *cells, *params)
    return table


def arrow(metric: Metric) -> str:
    """`↓` where lower is better, `↑` where higher is."""
    return "↓" if metric.goal is Goal.MIN else "↑"


def best_value(trials: Sequence[Trial], metric: Metric) -> float | None:
    """The best value of a metric among trials, None without trials."""
    values = [metric.oriented(trial.metrics[metric.name]) for trial in trials]
    return metric.oriented(min(values)) if values else None


def _metric_cell(trial: Trial, metric: Metric, best: float | None) -> str:
    value = trial.metrics[metric.name]
    text = format_figure(value, metric.unit)
    return f"[bold green]{text}[/]" if value == best else text


def front_chart(
    front: Front,
    x: Metric | None = None,
    y: Metric | None = None,
    *,
    width: int = 60,
    height: int = 14,
) -> str:
    """A scatter of two metrics in plain characters: `●` on the front, `·` beaten by another trial.

    Args:
        front: what is drawn.
        x: the metric across; default: the second.
        y: the metric upright; default: the first.
        width: characters across, without the labels.
        height: lines of the plot, without the axis.
    """
    if not front.trials or len(front.metrics) < 2:
        return ""
    across, upright = x or front.metrics[1], y or front.metrics[0]
    drawn = [*front.others, *front.trials]
    columns = _Scale.of([trial.metrics[across.name] for trial in drawn], width)
    rows = _Scale.of([trial.metrics[upright.name] for trial in drawn], height)
    grid = [[" "] * width for _ in range(height)]
    for trials, mark in ((front.others, "·"), (front.trials, "●")):
        for trial in trials:
            row = height - 1 - rows.cell(trial.metrics[upright.name])
            grid[row][columns.cell(trial.metrics[across.name])] = mark
    return _framed(grid, across, upright, columns=columns, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Maps values to cells, evenly or by their logarithm."""

    low: float
    high: float
    num_cells: int
    log: bool

    @classmethod
    def of(cls, values: Sequence[float], num_cells: int) -> _Scale:
        low, high = min(values), max(values)
        log = low > 0 and high / low > _LOG_SPREAD
        return cls(low=low, high=high, num_cells=num_cells, log=log)

    def cell(self, value: float) -> int:
        if self.high == self.low:
            return self.num_cells // 2
        low, high, here = (self._placed(number) for number in (self.low, self.high, value))
        return round((here - low) / (high - low) * (self.num_cells - 1))

    def _placed(self, value: float) -> float:
        return math.log(value) if self.log else value


def _framed(grid: list[list[str]], x: Metric, y: Metric, *, columns: _Scale, rows: _Scale) -> str:
    top, bottom = format_value(rows.high, y.unit), format_value(rows.low, y.unit)
    margin = max(len(top), len(bottom))
    labels = {0: top, len(grid) - 1: bottom}
    lines = [
        f"{labels.get(i, ''):>{margin}} │{''.join(row)}".rstrip() for i, row in enumerate(grid)
    ]
    left, right = format_value(columns.low, x.unit), format_value(columns.high, x.unit)
    width = columns.num_cells
    lines.append(f"{'':>{margin}} └{'─' * width}")
    lines.append(f"{'':>{margin}}  {left}{right:>{max(1, width - len(left))}}")
    indent = f"{'':>{margin}}  "
    lines.append(f"{indent}{_axis_name(y, rows)} over {_axis_name(x, columns)}")
    lines.append(f"{indent}● on the front, · beaten by another trial")
    return "\n".join(lines)


def _axis_name(metric: Metric, scale: _Scale) -> str:
    return f"{metric.name} {arrow(metric)}{' (log scale)' if scale.log else ''}"
