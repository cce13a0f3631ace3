"""What a function or a command reports while it trains by itself, and what follows from it.

`tokens` among the figures counts what was trained on so far; a `loss` not finite ends a trial.
Importing this module imports neither Ray nor torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsFloat

from search.metric import DERIVED_METRICS, PEAK_MEMORY, TOKENS_PER_SECOND, TRAINING_METRICS
from search.results import CurvePoint, Outcome

if TYPE_CHECKING:
    from search.trials.attempt import Task

TOKENS = "tokens"
LOSS = "loss"
_CURVE_POINTS = 50
_MEASURED = frozenset(metric.name for metric in (*TRAINING_METRICS, *DERIVED_METRICS))
_NOT_REPORTED = frozenset({PEAK_MEMORY.name, *(metric.name for metric in DERIVED_METRICS)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a trial ended, and why where it did not complete."""

    outcome: Outcome
    message: str = ""


class TrialOverError(BaseException):
    """Ends what trains from within a report; no `except Exception` of a user's takes it."""

    def __init__(self, ending: Ending | None = None) -> None:
        """Takes how the trial ended; without, it was stopped."""
        self.ending = ending or Ending(outcome=Outcome.FAILED, message="it was stopped")
        super().__init__(self.ending.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    figures: Mapping[str, float]
    num_tokens: int
    seconds: float


class Reports:
    """All reports of one trial; they may come from another thread."""

    def __init__(self, task: Task) -> None:
        """Starts the clock of the trial."""
        self._task = task
        self._reports: list[_Report] = []
        self._counts_tokens = False
        self._started = time.perf_counter()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._reports)

    def take(self, values: Mapping[str, SupportsFloat]) -> None:
        """Adds a report.

        Raises:
            TypeError: when a figure is no number.
            TrialOverError: when the trial ends with it: its tokens are all trained on, or its loss
                is no longer finite.
        """
        figures = {name: _number(name, value) for name, value in values.items()}
        told = figures.pop(TOKENS, math.nan)
        self._counts_tokens |= math.isfinite(told)
        if not self._counts_tokens:
            told = len(self) + 1
        num_tokens = round(told) if math.isfinite(told) else self.tokens
        seconds = time.perf_counter() - self._started
        self._reports.append(_Report(figures=figures, num_tokens=num_tokens, seconds=seconds))
        self._end_if_over(figures.get(LOSS, 0.0))

    def _end_if_over(self, loss: float) -> None:
        if not math.isfinite(loss):
            message = f"the loss was {loss:g} in report {len(self)}"
            raise TrialOverError(Ending(outcome=Outcome.DIVERGED, message=message))
        if self._counts_tokens and 0 < self._task.num_tokens <= self.tokens:
            raise TrialOverError(self.completed())

    @property
    def tokens(self) -> int:
        """Those trained on so far; the number of reports where none of them tells."""
        return self._reports[-1].num_tokens if self._reports else 0

    @property
    def loss(self) -> float:
        """The latest loss; NaN before there is one."""
        return self._latest().get(LOSS, math.nan)

    def _latest(self) -> dict[str, float]:
        merged: dict[str, float] = {}
        for report in self._reports:
            merged.update(report.figures)
        return merged

    def completed(self) -> Ending:
        """How a trial ended that came to its end: with all that the sweep asks of it, or not."""
        latest = {**self._latest(), **self.speed()}
        asked = [name for name in self._task.objectives if name not in _NOT_REPORTED]
        if missing := [name for name in asked if name not in latest]:
            told = ", ".join(latest) or "nothing"
            message = f"it reported no {', '.join(missing)} (it reported {told}){_hint(missing)}"
            return Ending(outcome=Outcome.FAILED, message=message)
        for name in asked:
            if not math.isfinite(latest[name]):
                message = f"its last {name} was {latest[name]:g}"
                return Ending(outcome=Outcome.DIVERGED, message=message)
        return Ending(outcome=Outcome.COMPLETED)

    def metrics(self) -> dict[str, float]:
        """The last finite value of each figure, and the speed. What is measured is not taken."""
        latest = {**self._latest(), **self.speed()}
        return {
            name: value
            for name, value in latest.items()
            if math.isfinite(value) and (name not in _MEASURED or name in self.speed())
        }

    def speed(self) -> dict[str, float]:
        """Tokens per second from the first report to the last: what came before was starting up.

        Of a single report, from the start. Nothing where the reports count no tokens.
        """
        if not self._reports or not self._counts_tokens:
            return {}
        first, last = self._reports[0], self._reports[-1]
        if last.num_tokens == first.num_tokens:
            first = _Report(figures={}, num_tokens=0, seconds=0.0)
        num_tokens, seconds = last.num_tokens - first.num_tokens, last.seconds - first.seconds
        if num_tokens <= 0 or seconds <= 0:
            return {}
        return {TOKENS_PER_SECOND.name: num_tokens / seconds}

    def curve(self) -> tuple[CurvePoint, ...]:
        """Each figure by tokens, in 50 of the reports at most: evenly spread, the last too."""
        num = min(len(self._reports), _CURVE_POINTS)
        kept = [self._reports[-1 - index * len(self._reports) // num] for index in range(num)]
        return tuple(
            CurvePoint(name=name, num_tokens=report.num_tokens, value=value)
            for report in reversed(kept)
            for name, value in report.figures.items()
        )


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        msg = f"report: {name} must be a number, found {value!r}"
        raise TypeError(msg) from error


def _hint(missing: list[str]) -> str:
    if TOKENS_PER_SECOND.name in missing:
        return "; report the `tokens` trained on so far, and their speed is measured"
    return ""
