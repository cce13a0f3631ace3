"""Asks the sampler, refuses what does not fit, and hands out the rest.

Left to others: starting what is handed out, and keeping the record.
"""

from __future__ import annotations

import logging
import math
import random
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.errors import InputError, MachineError, SweepStoppedError
from search.memory.feasibility import DoesNotFit, Fits, Unjudged, Verdict
from search.results import Outcome, Params, ParamValue, Trial
from search.trials import domains
from search.trials.ledger import LedgerState, Refused, Started
from search.units import format_bytes

if TYPE_CHECKING:
    import optuna

    from search.sweep.sweep import Sweep

_log = logging.getLogger(__name__)

Order = Callable[[Sequence[Params]], Sequence[int]]
"""The places of some configurations in the order in which they are to be launched."""

MEMORY = "memory"
DIVERGENCE = "divergence"
_LEAST_EXCESS = 0.01
"""The constraint of a trial that ran out of memory although it was predicted to fit."""
_MAX_REPEATED_ASKS = 10
"""A sampler that draws known points this often in a row has nothing new to say."""
_NUM_FIRST = 10
"""Configurations that are put in order: as many as the sampler draws before it learns.

Source: `n_startup_trials` of `optuna.samplers.TPESampler`.
"""
_MAX_ENUMERATED = 200_000
"""Points of a finite space that are listed to find an untried one; beyond, drawing meets them."""


class Gate:
    """Proposes configurations that fit the budget, none of them twice.

    The study lives in memory and is rebuilt from the ledger, so the two cannot disagree. Draws
    are the same for the same seed and the same told results.
    """

    message = ""
    """Why there is nothing left to propose; empty while there is."""

    def __init__(
        self,
        *,
        sweep: Sweep,
        fits: Callable[[Params], Verdict | Unjudged],
        params_of: Callable[[Params], Params],
        budget_bytes: int,
        history: LedgerState,
        on_refused: Callable[[Refused], None],
        order: Order | None = None,
    ) -> None:
        """Tells a new study everything on record.

        Args:
            sweep: the space, the objectives, the seed.
            fits: judges a whole configuration.
            params_of: the whole configuration of a point of the space.
            budget_bytes: what one trial may use.
            history: what the ledger tells.
            on_refused: is handed each refusal once, before the next draw.
            order: in which the first configurations are launched; default: as they are drawn.
        """
        self._sweep = sweep
        self._fits = fits
        self._params_of = params_of
        self._budget_bytes = budget_bytes
        self._on_refused = on_refused
        self._distributions = domains.distributions(sweep.space)
        self._study = new_study(sweep, seed=sweep.seed + history.num_records)
        self._random = random.Random(sweep.seed + history.num_records)  # noqa: S311 - no secret
        self._running: dict[int, optuna.Trial] = {}
        self._known: set[str] = set()
        self._told: set[str] = set()
        self._next_number = 1 + max(history.launched, default=-1)
        self._num_refused = len(history.refusals)
        self._least_needed_bytes = min(map(_needed_bytes, history.refused), default=None)
        self._untried: list[dict[str, ParamValue]] | None = None
        self._order = order
        self._first: deque[optuna.Trial] = deque()
        self._replay(history)

    def _replay(self, history: LedgerState) -> None:
        for refusal in history.refusals:
            self._add(refusal.point, refusal.trial)
        for trial in history.trials:
            self._add(history.launched[trial.number].point, trial)
        for started in history.unfinished:
            self._running[started.number] = self._ask(started.point)
            self._known.add(domains.key(started.point))

    def _add(self, point: Params, trial: Trial) -> None:
        from optuna.trial import create_trial

        told = tell_of(trial, self._sweep, self._budget_bytes)
        self._known.add(domains.key(point))
        self._study.add_trial(
            create_trial(
                state=told.state,
                values=told.values,
                params=domains.draw(self._sweep.space, point),
                distributions=self._distributions,
                constraints=told.constraints,
            )
        )

    def next(self) -> Started | None:
        """The next configuration to launch; None when all points of the space were tried.

        Raises:
            SweepStoppedError: when the sweep's refusals are used up.
        """
        while self._num_refused < self._sweep.most_refusals:
            drawn = self._next_draw()
            if drawn is None:
                self._leave_message()
                return None
            point = domains.point(self._sweep.space, drawn.params)
            verdict = self._verdict(self._params_of(point))
            if not (self._sweep.memory.gate and isinstance(verdict, DoesNotFit)):
                return self._launch(drawn, point, verdict)
            self._refuse(drawn, point, verdict)
        used_up = f"the sweep used up its {self._num_refused} refusals (`refusals` in its file)"
        msg = f"{used_up}; {self._least_needed()}"
        raise SweepStoppedError(msg)

    def _verdict(self, params: Params) -> Verdict | Unjudged:
        """Whether it fits. What cannot be judged is launched: its own failure says why.

        Raises:
            InputError: when the gate is on, for what cannot be trained or would be judged wrongly.
        """
        try:
            return self._fits(params)
        except MachineError:
            raise
        except (Exception, SystemExit) as error:  # to judge runs the user's own model
            if isinstance(error, InputError) and self._sweep.memory.gate:
                raise
            self._tell_once(f"memory could not be predicted: {error!r}")
            return Unjudged(params=params)

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            _log.warning(message)

    def _launch(self, drawn: optuna.Trial, point: Params, verdict: Verdict | Unjudged) -> Started:
        number = self._next_number
        self._next_number += 1
        self._running[number] = drawn
        return Started(
            number=number,
            point=point,
            params=verdict.params,
            predicted=verdict.predicted,
            details=_rescue_details(verdict),
        )

    def _refuse(self, drawn: optuna.Trial, point: Params, verdict: DoesNotFit) -> None:
        trial = Trial(
            number=self._num_refused,
            params=verdict.params,
            outcome=Outcome.PRUNED_BY_MEMORY,
            predicted=verdict.predicted,
            message=verdict.reason,
            details={"excess_bytes": verdict.excess_bytes, "budget_bytes": verdict.budget_bytes},
        )
        self._num_refused += 1
        needed = _needed_bytes(trial)
        self._least_needed_bytes = min(needed, self._least_needed_bytes or needed)
        self._tell(drawn, trial)
        self._on_refused(Refused(point=point, trial=trial))

    def finished(self, trial: Trial) -> None:
        """Tells the sampler how a launched configuration ended."""
        self._tell(self._running.pop(trial.number), trial)

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        told = tell_of(trial, self._sweep, self._budget_bytes)
        for name, value in told.constraints.items():
            asked.set_constraint(name, value)
        self._study.tell(asked, values=told.values, state=told.state)

    def _next_draw(self) -> optuna.Trial | None:
        """A draw nobody saw. The first ones are drawn together and then put in order."""
        num_first = min(_NUM_FIRST, self._sweep.trials) - self._next_number - self._num_refused
        if self._order is not None and not self._first and num_first > 0:
            draws = [drawn for _ in range(num_first) if (drawn := self._untried_draw())]
            points = [domains.point(self._sweep.space, drawn.params) for drawn in draws]
            places = self._order([self._params_of(point) for point in points])
            self._first.extend(draws[place] for place in places)
        return self._first.popleft() if self._first else self._untried_draw()

    def _untried_draw(self) -> optuna.Trial | None:
        """A draw nobody saw: the sampler's if it has one, else any; None when there is none."""
        from optuna.trial import TrialState

        for _ in range(_MAX_REPEATED_ASKS):
            asked = self._study.ask(self._distributions)
            if self._is_new(domains.point(self._sweep.space, asked.params)):
                return asked
            self._study.tell(asked, state=TrialState.FAIL)
        point = self._any_untried_point()
        return None if point is None else self._ask(point)

    def _is_new(self, point: Params) -> bool:
        key = domains.key(point)
        known = key in self._known
        self._known.add(key)
        return not known

    def _ask(self, point: Params) -> optuna.Trial:
        self._study.enqueue_trial(domains.draw(self._sweep.space, point))
        return self._study.ask(self._distributions)

    def _any_untried_point(self) -> dict[str, ParamValue] | None:
        num_points = self._sweep.space.num_points()
        if num_points is None or num_points > _MAX_ENUMERATED:
            return self._random_point()
        if self._untried is None:
            self._untried = list(self._sweep.space.points())
            self._random.shuffle(self._untried)
        while self._untried:
            point = self._untried.pop()
            if self._is_new(point):
                return point
        return None

    def _random_point(self) -> dict[str, ParamValue] | None:
        """A random untried point of a space too large to list; None when drawing meets none."""
        study = _quiet_study(sampler_seed=self._random.getrandbits(32))
        for _ in range(_MAX_REPEATED_ASKS**2):
            asked = study.ask(self._distributions)
            point = domains.point(self._sweep.space, asked.params)
            if self._is_new(point):
                return point
        return None

    def _leave_message(self) -> None:
        """Says that all was tried; raises SweepStoppedError when not one point fitted."""
        total = self._next_number + self._num_refused
        if not self._next_number:
            msg = f"none of the {total} points of the space fits; {self._least_needed()}"
            raise SweepStoppedError(msg)
        refused = f", {self._num_refused} do not fit" if self._num_refused else ""
        self.message = (
            f"all {total} points of the space were tried: {self._next_number} trained{refused}"
        )

    def _least_needed(self) -> str:
        return (
            f"the smallest needs {format_bytes(self._least_needed_bytes or math.nan)}, "
            f"the budget is {format_bytes(self._budget_bytes)} (raise memory.budget, "
            "or let the space reach smaller models, batches or sequences)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What Optuna is told of a trial; a constraint above 0 means infeasible."""

    state: optuna.trial.TrialState
    values: list[float] | None
    constraints: dict[str, float]


def tell_of(trial: Trial, sweep: Sweep, budget_bytes: int) -> Told:
    """How a trial enters the study.

    Never FAIL for a configuration's own fault: every sampler of Optuna ignores FAIL, so it
    would draw the same again. Never a made-up metric.
    """
    from optuna.trial import TrialState

    values = None
    state = TrialState.PRUNED
    if trial.outcome is Outcome.COMPLETED:
        state = TrialState.COMPLETE
        values = [trial.metrics[name] for name in sweep.objectives]
    elif trial.outcome is Outcome.FAILED:
        state = TrialState.FAIL
    return Told(state=state, values=values, constraints=_constraints(trial, budget_bytes))


def _rescue_details(verdict: Verdict | Unjudged) -> dict[str, ParamValue]:
    """What was changed so that it fits, under `rescued`; nothing where nothing was."""
    rescued = verdict.rescued if isinstance(verdict, Fits) else ""
    return {"rescued": rescued} if rescued else {}


def _needed_bytes(refused: Trial) -> int:
    return int(refused.details["budget_bytes"] or 0) + int(refused.details["excess_bytes"] or 0)


def _constraints(trial: Trial, budget_bytes: int) -> dict[str, float]:
    excess = _memory_excess(trial, budget_bytes)
    if trial.outcome in (Outcome.PRUNED_BY_MEMORY, Outcome.OUT_OF_MEMORY):
        excess = max(excess, _LEAST_EXCESS)
    return {MEMORY: excess, DIVERGENCE: float(trial.outcome is Outcome.DIVERGED)}


def _memory_excess(trial: Trial, budget_bytes: int) -> float:
    """Memory over the budget as a share of it, below 0 for headroom; 0 where it is not known."""
    if "excess_bytes" in trial.details:
        return float(trial.details["excess_bytes"] or 0) / budget_bytes
    if trial.outcome is not Outcome.OUT_OF_MEMORY and "peak_memory" in trial.metrics:
        return trial.metrics["peak_memory"] / budget_bytes - 1
    if trial.predicted is not None:
        return trial.predicted.expected_bytes / budget_bytes - 1
    return 0.0


def new_study(sweep: Sweep, *, seed: int) -> optuna.Study:
    """An empty study in memory with the sweep's objectives and a TPE sampler.

    Source: Optuna's multivariate TPE gave the best fronts with a prefilter, at milliseconds a
    draw (`docs/decisions/0002-ledger-is-the-source.md`).
    """
    import optuna

    goals = [str(goal.value) for goal in sweep.objectives.values()]
    directions = ["minimize" if goal == "min" else "maximize" for goal in goals]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, group=True, constant_liar=True
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(directions=directions, sampler=sampler)


def _quiet_study(*, sampler_seed: int) -> Any:
    import optuna

    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=sampler_seed))
