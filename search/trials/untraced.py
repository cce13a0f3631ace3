"""One attempt at a trial that trains by itself, as a generator like `search.trials.attempt`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Protocol

from search.metric import PEAK_MEMORY
from search.results import Outcome, ParamValue, Trial
from search.trials.attempt import CHUNK_SECONDS, Attempt, Progress, Task, place
from search.trials.reports import Ending, Reports

_LOOK_SECONDS = 0.05
"""How often it is looked whether a trial has ended or must end."""


class Source(Protocol):
    """What trains: a function in a thread, or a command in processes of its own."""

    details: dict[str, ParamValue]

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that it took so far; None where that cannot be told."""
        ...

    def ended(self, within_seconds: float) -> Ending | None:
        """How it ended, waiting that long at most; None while it goes on."""
        ...


Start = Callable[[Task, Reports], AbstractContextManager[Source]]
"""Starts what trains. Leaving the context ends it, whatever it does, and completes `details`."""


def attempt(task: Task, start: Start) -> Attempt:
    """Follows what trains by itself; yields about once a second, returns the trial."""
    started_at, clock = time.time(), time.perf_counter()
    reports = Reports(task)
    with start(task, reports) as source:
        ending = yield from _followed(task, source, reports)
    metrics = reports.metrics()
    if source.peak_bytes is not None:
        metrics[PEAK_MEMORY.name] = float(source.peak_bytes)
    return Trial(
        number=task.number,
        params=task.params,
        outcome=ending.outcome,
        message=ending.message,
        metrics=metrics,
        started_at=started_at,
        duration_seconds=time.perf_counter() - clock,
        curve=reports.curve(),
        details={"num_reports": len(reports), **source.details, **place()},
    )


def _followed(task: Task, source: Source, reports: Reports) -> Generator[Progress, None, Ending]:
    clock = time.perf_counter()
    deadline, yield_at = clock + (task.time_limit_seconds or math.inf), clock + CHUNK_SECONDS
    while (ending := source.ended(_LOOK_SECONDS)) is None:
        if time.perf_counter() > deadline:
            message = f"its {task.time_limit_seconds:g} s were over after {len(reports)} reports"
            return Ending(outcome=Outcome.TIMED_OUT, message=message)
        if time.perf_counter() > yield_at:
            yield Progress(tokens_seen=reports.tokens, loss=reports.loss)
            yield_at = time.perf_counter() + CHUNK_SECONDS
    return ending
