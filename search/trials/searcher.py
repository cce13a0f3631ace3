"""The bookkeeper in Tune's terms: what Tune asks and reports goes through here, and nothing else.

Importing this module imports Ray.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.search import Searcher

from search.results import Trial
from search.trials.bookkeeping import Bookkeeper
from search.trials.death import Death, death, last_words
from search.trials.ranks import LostRankError
from search.trials.worker import (
    JOB,
    NUMBER,
    PARAMS,
    TRIAL,
    Job,
    RetiredError,
    UnplacedError,
    progress_of,
)


class _Unpickled:
    """Enters Tune's own snapshot, which nobody restores, without its state."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class LedgerSearcher(_Unpickled, Searcher):  # type: ignore[misc]  # Ray gives no types
    """Asks the bookkeeper for trials and hands it their reports.

    Tune's snapshots of it are empty: the ledger is what a sweep goes on from.
    """

    def __init__(self, bookkeeper: Bookkeeper, job: Job, *, num_places: int) -> None:
        """Takes the metrics of all objectives together, so Tune is told of none.

        No more trials are handed out than find places, so that none waits in Tune.
        """
        super().__init__()
        self._bookkeeper = bookkeeper
        self._job = job
        self._num_places = num_places
        self._numbers: dict[str, int] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration, nothing for now, or the end."""
        started = self._bookkeeper.next(self._num_places)
        if started is not None:
            self._numbers[trial_id] = started.number
            return {NUMBER: started.number, PARAMS: dict(started.params), JOB: self._job}
        return str(Searcher.FINISHED) if self._bookkeeper.over else None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A running trial reported."""
        self._bookkeeper.progress(self._numbers[trial_id], progress_of(result))

    def on_trial_complete(
        self,
        trial_id: str,
        result: dict[str, Any] | None = None,
        error: bool = False,  # noqa: FBT001, FBT002 - Tune's signature
    ) -> None:
        """A trial ended. Of errors Tune says nothing here: `DeathCallback` hears why."""
        del trial_id
        if not error and result is not None:
            self._bookkeeper.finished(Trial.from_json(json.loads(result[TRIAL])))

    def save(self, checkpoint_path: str) -> None:
        """An empty snapshot."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the ledger was read."""


class DeathCallback(_Unpickled, tune.Callback):  # type: ignore[misc]  # Ray gives no types
    """Tells the bookkeeper of workers that died, and of those that retired."""

    def __init__(self, bookkeeper: Bookkeeper, *, limit_in_force: bool) -> None:
        """Takes what a death means.

        Args:
            bookkeeper: who is told.
            limit_in_force: whether the system holds each worker to its trial's budget.
        """
        self._bookkeeper = bookkeeper
        self._limit_in_force = limit_in_force

    def on_trial_error(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any
    ) -> None:
        """A worker raised or died."""
        del iteration, trials, info
        number = trial.config[NUMBER]
        error = _error(trial)
        if isinstance(error, RayActorError | OutOfMemoryError):
            self._bookkeeper.died(number, self._death(error))
        elif RetiredError.__name__ in str(error):
            self._bookkeeper.again(number)
        elif LostRankError.__name__ in str(error):
            words = str(error).rpartition(f"{LostRankError.__name__}: ")[2].strip()
            self._bookkeeper.died(number, self._lost(words))
        elif UnplacedError.__name__ in str(error):
            reason = str(error).rpartition(f"{UnplacedError.__name__}: ")[2]
            self._bookkeeper.unplaced(number, reason.strip().splitlines()[0])
        else:
            message = f"the worker could not train: {error}"
            self._bookkeeper.died(number, Death(message=message, is_out_of_memory=False))

    def _lost(self, words: str) -> Death:
        """How another process of a trial ended, by the words that rank 0 heard of it."""
        ended = death(last_words=words, limit_in_force=self._limit_in_force)
        return replace(ended, message=f"{words.splitlines()[0]}: {ended.message}")

    def _death(self, error: Exception) -> Death:
        if isinstance(error, OutOfMemoryError):
            message = "the host ran out of memory and the worker process was killed"
            return Death(message=message, is_out_of_memory=True)
        session_name = ray.get_runtime_context().get_session_name()
        return death(
            last_words=last_words(str(error), session_name), limit_in_force=self._limit_in_force
        )


def _error(trial: TuneTrial) -> object:
    """What Tune kept of a trial's error; its own `get_error` looks where nothing was copied yet."""
    if trial.pickled_error_file is not None:
        return cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    return Path(trial.error_file).read_text(encoding="utf-8")


class SweepStopper(_Unpickled, tune.Stopper):  # type: ignore[misc]  # Ray gives no types
    """Ends the sweep when it was asked to, or was given up. What runs stays 'started'."""

    def __init__(self, bookkeeper: Bookkeeper, stop: threading.Event) -> None:
        """Takes who gives up and who asks."""
        self._bookkeeper = bookkeeper
        self._stop = stop

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No single trial is stopped here."""
        del trial_id, result
        return False

    def stop_all(self) -> bool:
        """Whether every trial is to end now."""
        return self._stop.is_set() or self._bookkeeper.given_up
