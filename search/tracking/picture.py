"""What a chart of a sweep shows, before it is drawn: axes, trials, the outline of the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from search.metric import Goal, Metric
from search.results import Trial
from search.tracking.summary import front_numbers, measured_trials
from search.units import GIB, MIB, format_value

_LOG_SPREAD = 30.0
"""Largest over smallest value from which on an axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One metric as it is drawn: divided by `scale`, with a label that says which way is better."""

    metric: Metric
    label: str
    scale: float
    log: bool

    def of(self, trial: Trial) -> float:
        """Where the trial stands on it."""
        return trial.metrics[self.metric.name] / self.scale

    def shown(self, trial: Trial) -> str:
        """The trial's value with its unit."""
        return format_value(trial.metrics[self.metric.name], self.metric.unit)


def _axis(metric: Metric, trials: Sequence[Trial]) -> Axis:
    values = [trial.metrics[metric.name] for trial in trials]
    scale, unit = _scale(metric, values)
    better = "lower" if metric.goal is Goal.MIN else "higher"
    name = metric.name.replace("_", " ")
    told = not unit or unit.replace("/s", " per second") in name
    shown_unit = "" if told else f" [{unit}]"
    log = min(values, default=0) > 0 and max(values) / min(values) > _LOG_SPREAD
    return Axis(
        metric=metric, label=f"{name}{shown_unit}, {better} is better", scale=scale, log=log
    )


def _scale(metric: Metric, values: Sequence[float]) -> tuple[float, str]:
    if metric.unit != "B":
        return 1.0, metric.unit
    return (GIB, "GiB") if max(values, default=0) >= GIB else (MIB, "MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is drawn: completed trials, which of them are on the front, and an axis a metric."""

    trials: tuple[Trial, ...]
    on_front: frozenset[int]
    axes: tuple[Axis, ...]

    def pairs(self) -> list[tuple[Axis, Axis]]:
        """Every pair of axes, the earlier metric upright."""
        if len(self.axes) == 1:
            return [(self.axes[0], self.axes[0])]
        return [(second, first) for first, second in combinations(self.axes, 2)]

    def parts(self) -> tuple[list[Trial], list[Trial]]:
        """Trials off the front, and on it."""
        front = [trial for trial in self.trials if trial.number in self.on_front]
        return [trial for trial in self.trials if trial.number not in self.on_front], front


def picture_of(trials: Sequence[Trial], metrics: tuple[Metric, ...]) -> Picture:
    """The completed trials among these that have every metric."""
    drawn = tuple(trial for trial, _ in measured_trials(trials, metrics))
    return Picture(
        trials=drawn,
        on_front=front_numbers(drawn, metrics),
        axes=tuple(_axis(metric, drawn) for metric in metrics),
    )


def steps(front: Sequence[Trial], x: Axis, y: Axis) -> tuple[list[float], list[float]]:
    """Corners of the line between what is reached and what is not, in the plane of two metrics."""
    pair = (x.metric, y.metric)
    numbers = front_numbers(front, pair)
    ordered = sorted((x.of(t), y.of(t)) for t in front if t.number in numbers)
    corners: list[tuple[float, float]] = []
    for left, right in pairwise(ordered):
        # The corner is the worse of both: the line encloses what some trial reaches.
        worse_x = max if x.metric.goal is Goal.MIN else min
        worse_y = max if y.metric.goal is Goal.MIN else min
        corners += [left, (worse_x(left[0], right[0]), worse_y(left[1], right[1]))]
    corners += ordered[-1:]
    return [corner[0] for corner in corners], [corner[1] for corner in corners]
