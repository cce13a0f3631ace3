"""A running sweep on the screen: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from search.metric import Metric
from search.pareto import hypervolume, reference_point
from search.results import Outcome, Trial
from search.trials.events import (
    Event,
    SpaceExhausted,
    TrialFinished,
    TrialProgress,
    TrialRefused,
    TrialStarted,
)
from search.units import format_bytes, format_figure, format_seconds, shown

_SHOWN_ALWAYS = (Outcome.COMPLETED, Outcome.PRUNED_BY_MEMORY, Outcome.OUT_OF_MEMORY)


class SweepProgress:
    """Takes the events of a sweep and shows how it stands.

    Left out: anything that must outlive the screen; the ledger keeps that.
    """

    def __init__(
        self,
        console: Console,
        *,
        num_trials: int,
        metrics: tuple[Metric, ...],
        dimensions: tuple[str, ...] = (),
    ) -> None:
        """Starts the clock.

        Args:
            console: where to show it.
            num_trials: how many trials the sweep asks for.
            metrics: what it optimizes.
            dimensions: what it searches, to say which configuration was refused.
        """
        self._dimensions = dimensions
        self._console = console
        self._metrics = metrics
        self._num_trials = num_trials
        self._counts: Counter[Outcome] = Counter()
        self._completed: list[Trial] = []
        self._running: dict[int, TrialProgress | TrialStarted] = {}
        self._started_at = time.monotonic()
        self._num_before = 0
        self._bar = Progress(
            TextColumn("[bold]trials"), BarColumn(bar_width=None), MofNCompleteColumn()
        )
        self._task = self._bar.add_task("trials", total=num_trials)
        self._live = Live(
            console=console, get_renderable=self.view, refresh_per_second=4, transient=True
        )

    def seed(self, trials: tuple[Trial, ...], refused: tuple[Trial, ...]) -> None:
        """Counts in what was done before a sweep was resumed."""
        for trial in (*trials, *refused):
            self._count(trial)
        self._num_before = self._num_done

    def __enter__(self) -> Self:
        """Shows the live view where there is a terminal."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Takes the live view away."""
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Shows what an event changes."""
        if isinstance(event, TrialFinished | TrialRefused):
            if isinstance(event, TrialFinished):
                self._running.pop(event.trial.number, None)
            self._count(event.trial)
            self._console.print(self._line(event.trial), highlight=False, soft_wrap=True)
        elif isinstance(event, TrialProgress | TrialStarted):
            self._running[event.number] = event
        elif isinstance(event, SpaceExhausted):
            self._console.print(event.message, highlight=False, soft_wrap=True)

    def _count(self, trial: Trial) -> None:
        self._counts[trial.outcome] += 1
        if trial.outcome is Outcome.COMPLETED:
            self._completed.append(trial)
        self._bar.update(self._task, completed=min(self._num_done, self._num_trials))

    @property
    def _num_done(self) -> int:
        return sum(count for outcome, count in self._counts.items() if outcome.is_trained)

    def _line(self, trial: Trial) -> Text:
        if trial.outcome is Outcome.PRUNED_BY_MEMORY:
            return Text(self._refusal(trial), style="yellow")
        words = trial.outcome.value.replace("_", " ")
        head = f"[{self._num_done}/{self._num_trials}] trial {trial.number} {words}"
        style = "" if trial.outcome is Outcome.COMPLETED else "yellow"
        return Text(f"{head}: {', '.join(self._figures(trial))}", style=style)

    def _refusal(self, trial: Trial) -> str:
        point = [f"{name} {shown(trial.params.get(name))}" for name in self._dimensions]
        return f"refused {', '.join(point)}: {trial.message.partition(';')[0]}"

    def _figures(self, trial: Trial) -> list[str]:
        figures = [
            f"{metric.name} {format_figure(trial.metrics[metric.name], metric.unit)}"
            for metric in self._metrics
            if metric.name in trial.metrics
        ]
        if trial.predicted is not None:
            figures.append(f"predicted {format_bytes(trial.predicted.expected_bytes)}")
        if trial.message:
            figures.append(trial.message.strip().splitlines()[-1])
        return figures

    def view(self) -> Group:
        """How the sweep stands now, for a terminal."""
        return Group(self._bar, self._counts_line(), self._best_table(), self._time_line())

    def _counts_line(self) -> Text:
        shown = [*_SHOWN_ALWAYS, *(o for o in self._counts if o not in _SHOWN_ALWAYS)]
        counts = [f"{outcome.value.replace('_', ' ')} {self._counts[outcome]}" for outcome in shown]
        return Text(" · ".join([f"running {len(self._running)}", *counts]))

    def _best_table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for metric in self._metrics:
            best = min(
                (t for t in self._completed if metric.name in t.metrics),
                key=lambda trial: metric.oriented(trial.metrics[metric.name]),
                default=None,
            )
            if best is not None:
                value = format_figure(best.metrics[metric.name], metric.unit)
                table.add_row(f"best {metric.name}", value, f"trial {best.number}")
        points = [trial.measured(self._metrics) for trial in self._completed]
        known = [point for point in points if point is not None]
        if known:
            volume = hypervolume(known, reference_point(known))
            table.add_row("hypervolume", f"{volume:.4g}", "")
        return table

    def _time_line(self) -> Text:
        elapsed = time.monotonic() - self._started_at
        done = self._num_done - self._num_before
        text = f"elapsed {format_seconds(elapsed)}"
        if done:
            left = max(0, self._num_trials - self._num_done) * elapsed / done
            text += f", about {format_seconds(left)} to go"
        return Text(text, style="dim")
