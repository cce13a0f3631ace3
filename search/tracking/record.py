"""Writes a sweep to MLflow while it runs: one parent run, one child run a trial, written once each.

A background thread writes, so that a slow, full or dead store costs the sweep nothing; what could
not be written is tried again with later trials and at the end, and then reported.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from search.results import Outcome, Trial
from search.tracking import pages, store, views
from search.tracking.entries import RecordedSweep, RunStatus
from search.tracking.runs import SweepRuns
from search.tracking.summary import Summary

DOWN_SECONDS = 30.0
"""How long a store that failed is left alone: a dead server is not asked for every trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwritten:
    """What the store lacks, and the last thing it said."""

    what: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        """One line for the screen."""
        shown = ", ".join(self.what[:4]) + (", ..." if len(self.what) > 4 else "")
        return f"not written to MLflow: {shown} ({self.reason})"


class Recorder:
    """Remembers one sweep. Opened before its first trial, closed after its last.

    `record`, `reconcile` and `finish` raise nothing about the store; `close` tells what it lacks.
    """

    def __init__(self, sweep_runs: SweepRuns, *, uri: str) -> None:
        """Takes the sweep's runs in an open store; `Recorder.open` is how to get one."""
        self.uri = uri
        self._runs = sweep_runs
        self._trials: dict[int, Trial] = {}
        self._unwritten: dict[str, Callable[[], None]] = {}
        self._reason = ""
        self._down_until = 0.0
        self._finished = False
        self._queue: queue.Queue[Trial | None] = queue.Queue()
        self._thread = threading.Thread(target=self._drain, name="paretune-record", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, uri: str | None, sweep: RecordedSweep) -> Self:
        """A recorder whose parent run exists: a new one, or that of the sweep being resumed.

        Args:
            uri: of the store; default: `MLFLOW_TRACKING_URI`, or `mlflow.db` in this folder.
            sweep: what is recorded; its `sweep_id` finds the runs again.

        Raises:
            MachineError: when the store cannot be reached or written.
        """
        found = store.store_uri(uri)
        client = store.open_client(found)
        with store.store_faults(found):
            experiment_id = store.open_experiment(client, sweep.name)
            return cls(SweepRuns(client, sweep, experiment_id=experiment_id), uri=found)

    @property
    def url(self) -> str:
        """Where a browser shows the sweep's trials, with their columns and charts."""
        runs = self._runs
        return pages.experiment_url(self.uri, runs.experiment_id, view=views.view_key(runs.sweep))

    @property
    def parent_run_id(self) -> str:
        """The MLflow run of the sweep itself."""
        return self._runs.parent_run_id

    def run_id(self, number: int) -> str | None:
        """The MLflow run of a trial, once it is written."""
        return self._runs.run_ids().get(number)

    def record(self, trial: Trial) -> None:
        """Hands a trial that has ended to the writing thread. Refused ones are no runs: ignored."""
        if trial.outcome is not Outcome.PRUNED_BY_MEMORY:
            self._queue.put(trial)

    def record_event(self, event: object) -> None:
        """Records the trial of an event that carries one; every other event is ignored."""
        trial = getattr(event, "trial", None)
        if isinstance(trial, Trial):
            self.record(trial)

    def reconcile(self, trials: Sequence[Trial]) -> None:
        """Writes whatever the store lacks of these trials, and ends runs that belong to none."""
        for trial in trials:
            self.record(trial)
        self._queue.join()
        launched = {trial.number for trial in trials}
        self._try("ends of unknown trials", lambda: self._runs.kill_unknown(launched))

    def finish(
        self,
        trials: Sequence[Trial],
        refused: Sequence[Trial] = (),
        status: RunStatus = RunStatus.FINISHED,
    ) -> None:
        """Completes the record: the trials it lacks, the front, counts, charts, tables, the story.

        Args:
            trials: all that were launched.
            refused: what the memory gate refused, and why.
            status: KILLED when the sweep was interrupted, FAILED when it gave up.
        """
        self.reconcile(trials)
        self._retry()
        report = Summary(sweep=self._runs.sweep, trials=tuple(trials), refused=tuple(refused))
        self._try("charts and tables", lambda: self._runs.log_artifacts(report))
        self._try("summary", lambda: self._runs.summarize(report))
        self._try("end of the sweep", lambda: self._runs.end_parent(status))
        self._finished = True

    def close(self) -> Unwritten | None:
        """Tries once more what failed, and ends the thread; what the store lacks, if anything.

        Without `finish` before it, the sweep is recorded as interrupted.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if not self._finished:
            self._try("end of the sweep", lambda: self._runs.end_parent(RunStatus.KILLED))
        self._retry()
        if not self._unwritten:
            return None
        return Unwritten(what=tuple(self._unwritten), reason=self._reason)

    def _drain(self) -> None:
        while (trial := self._queue.get()) is not None:
            self._write(trial)
            self._queue.task_done()

    def _write(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        if self._try(f"trial {trial.number}", lambda: self._runs.write(trial)):
            self._retry()
        self._try("front", lambda: self._runs.mark_front(tuple(self._trials.values())))

    def _try(self, what: str, action: Callable[[], None]) -> bool:
        """Whether it is written; if not, it is kept for `_retry`."""
        self._unwritten[what] = action
        if time.monotonic() < self._down_until:
            return False
        try:
            action()
        except Exception as error:  # noqa: BLE001 - no fault of a store may end a sweep
            self._reason = store.first_line(error)
            self._down_until = time.monotonic() + DOWN_SECONDS
            return False
        self._unwritten.pop(what)
        return True

    def _retry(self) -> None:
        """Tries what is unwritten, oldest first, until two in a row fail."""
        faults = 0
        for what, action in list(self._unwritten.items()):
            self._down_until = 0.0
            faults = 0 if self._try(what, action) else faults + 1
            if faults == 2:
                return
