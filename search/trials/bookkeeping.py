"""Keeps ledger, gate and listener in step, and knows when a sweep is over. Without Ray."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from search.errors import MachineError, SweepStoppedError
from search.results import Outcome, Trial
from search.trials.attempt import Progress
from search.trials.death import Death
from search.trials.events import (
    Event,
    SpaceExhausted,
    TrialFinished,
    TrialProgress,
    TrialRefused,
    TrialStarted,
)
from search.trials.ledger import Ledger, LedgerState, Refused, Started
from search.trials.placement import world_size_of

if TYPE_CHECKING:
    from search.sweep.sweep import Sweep
    from search.trials.gate import Gate

Derived = Callable[[Trial], Mapping[str, float]]
"""Metrics that follow from those of a completed trial."""


def no_figures(_: Trial) -> Mapping[str, float]:
    """None."""
    return {}


P = ParamSpec("P")
R = TypeVar("R")

_ATTEMPTS = 2
"""How often a trial is started whose process dies."""
_MOST_UNPLACED = 4
"""How often in a row workers may find no place, each after a minute's wait, before it is over."""


def _noting_faults(
    method: Callable[Concatenate[Bookkeeper, P], R],
) -> Callable[Concatenate[Bookkeeper, P], R]:
    """Ends the sweep at the first fault, whatever Tune makes of it."""

    @wraps(method)
    def noting(self: Bookkeeper, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.fault is not None:
            raise self.fault
        try:
            return method(self, *args, **kwargs)
        except Exception as fault:
            self.fault, self.given_up = fault, True
            raise

    return noting


class Bookkeeper:
    """Hands out what to launch, and records what becomes of it.

    The ledger is written before anybody hears of it.
    """

    error: SweepStoppedError | None = None
    """Why the sweep was given up; None while it was not."""
    fault: Exception | None = None
    """What broke while something was handed out or recorded. Tune would raise it as text alone."""
    given_up = False
    """Whether the sweep is to end at once, leaving what runs."""

    def __init__(
        self,
        *,
        sweep: Sweep,
        ledger: Ledger,
        gate: Callable[[LedgerState, Callable[[Refused], None]], Gate],
        on_event: Callable[[Event], None],
        derived: Derived = no_figures,
    ) -> None:
        """Reads the ledger, which must be claimed.

        Args:
            sweep: how many trials, and how many failures end it.
            ledger: where everything is recorded.
            gate: makes the gate from what is on record and a listener for refusals.
            on_event: is told what happens, once it is recorded.
            derived: metrics that follow from a completed trial.
        """
        history = ledger.read()
        self._sweep = sweep
        self._ledger = ledger
        self._on_event = on_event
        self._derived = derived
        self._gate = gate(history, self._refused)
        self._waiting = deque(history.unfinished)
        self._running: dict[int, Started] = {}
        self._launched_at: dict[int, float] = {}
        self._num_deaths: Counter[int] = Counter()
        self._since_completed: Counter[Outcome] = Counter()
        self._num_trained = sum(trial.outcome.is_trained for trial in history.trials)
        self._exhausted = False
        self._num_unplaced = 0

    @property
    def over(self) -> bool:
        """Whether nothing is left to launch or to wait for."""
        return not self._running and (self.given_up or self._enough or self._exhausted)

    @property
    def _enough(self) -> bool:
        return self._num_trained >= self._sweep.trials

    @_noting_faults
    def next(self, num_places: int | None = None) -> Started | None:
        """What to launch now; None when there is nothing, for now or for good (see `over`).

        Where `num_places` are told, a trial of more processes than are free waits for its turn, and
        those after it with it.
        """
        if not self.ready():
            return None
        if num_places is not None:
            taken = sum(world_size_of(running.params) for running in self._running.values())
            if taken and taken + world_size_of(self._waiting[0].params) > num_places:
                return None
        return self._launch(self._waiting.popleft())

    @_noting_faults
    def ready(self) -> bool:
        """Whether there is something to launch now. Draws it, so that it is known beforehand."""
        if not self._waiting and (drawn := self._drawn()) is not None:
            self._waiting.append(drawn)
        return bool(self._waiting) and not self.given_up

    def _drawn(self) -> Started | None:
        """A new configuration, on record; None when none is wanted or none is left."""
        num_taken = self._num_trained + len(self._running)
        if self.error or self._exhausted or num_taken >= self._sweep.trials:
            return None
        try:
            started = self._gate.next()
        except SweepStoppedError as error:
            self.error, self._exhausted = error, True
            return None
        if started is None:
            self._exhausted = True
            self._ledger.exhausted()
            self._on_event(SpaceExhausted(message=self._gate.message))
            return None
        self._ledger.started(started)
        return started

    def _launch(self, started: Started) -> Started:
        self._running[started.number] = started
        self._launched_at[started.number] = time.time()
        self._on_event(
            TrialStarted(number=started.number, params=started.params, predicted=started.predicted)
        )
        return started

    def _refused(self, refused: Refused) -> None:
        self._ledger.refused(refused)
        self._on_event(TrialRefused(trial=refused.trial))

    @_noting_faults
    def progress(self, number: int, progress: Progress) -> None:
        """Passes on where a running trial stands."""
        self._num_unplaced = 0
        self._on_event(
            TrialProgress(number=number, tokens_seen=progress.tokens_seen, loss=progress.loss)
        )

    @_noting_faults
    def finished(self, trial: Trial) -> None:
        """Records how a running trial ended."""
        started = self._running.pop(trial.number)
        details = {**started.details, **trial.details}
        trial = self._whole(replace(trial, predicted=started.predicted, details=details))
        self._ledger.finished(trial)
        self._gate.finished(trial)
        self._num_trained += trial.outcome.is_trained
        self._num_unplaced = 0
        self._give_up_on_a_row(trial)
        self._on_event(TrialFinished(trial=trial))

    def _whole(self, trial: Trial) -> Trial:
        """With what follows from it. A completed one that still lacks an objective has failed."""
        if trial.outcome is not Outcome.COMPLETED:
            return trial
        trial = replace(trial, metrics={**trial.metrics, **self._derived(trial)})
        if missing := [name for name in self._sweep.objectives if name not in trial.metrics]:
            message = f"it has no {', '.join(missing)} (it has {', '.join(trial.metrics)})"
            return replace(trial, outcome=Outcome.FAILED, message=message)
        return trial

    @_noting_faults
    def again(self, number: int) -> None:
        """Puts a trial back that never began, through no fault of its own."""
        self._waiting.append(self._running.pop(number))

    @_noting_faults
    def unplaced(self, number: int, reason: str) -> None:
        """Puts a trial back whose worker found no place to train, for want of which it never began.

        Raises:
            MachineError: when that happens again and again and no other trial goes on meanwhile.
        """
        self._num_unplaced += 1
        if self._num_unplaced >= _MOST_UNPLACED:
            raise MachineError(reason)
        self.again(number)

    @_noting_faults
    def died(self, number: int, death: Death) -> None:
        """Starts a trial once more whose process died; at the second time that is its outcome."""
        self._num_deaths[number] += 1
        if self._num_deaths[number] < _ATTEMPTS:
            self.again(number)
            return
        outcome = Outcome.OUT_OF_MEMORY if death.is_out_of_memory else Outcome.FAILED
        message = f"{death.message} (in {_ATTEMPTS} attempts)"
        started_at = self._launched_at[number]
        self.finished(
            Trial(
                number=number,
                params=self._running[number].params,
                outcome=outcome,
                message=message,
                started_at=started_at,
                duration_seconds=time.time() - started_at,
            )
        )

    def _give_up_on_a_row(self, trial: Trial) -> None:
        if trial.outcome is Outcome.COMPLETED:
            self._since_completed.clear()
            return
        if trial.outcome is Outcome.OUT_OF_MEMORY and not self._sweep.memory.gate:
            return  # without the gate these are what was asked for
        self._since_completed[trial.outcome] += 1
        count = self._since_completed[trial.outcome]
        if count < self._sweep.stop_after_failures or self._enough:
            return
        kind = trial.outcome.value.replace("_", " ")
        msg = (
            f"{count} trials {kind} with none completed in between, so the sweep stopped "
            f"(stop_after_failures in its file); the last, trial {trial.number}:\n{trial.message}"
        )
        self.error, self.given_up = SweepStoppedError(msg), True
