"""Whether a configuration of an untraced training fits, by what its sweep's trials took so far.

Left out: trials that ended before their time for another reason than memory, since nobody knows
whether they had reached their peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from search.memory.calibration import Calibration
from search.memory.feasibility import DoesNotFit, Fits, Unjudged, Verdict
from search.memory.learned import LearnedMemory, Observation
from search.memory.monotone import Estimate
from search.memory.residuals import SCALES, Residual
from search.metric import PEAK_MEMORY
from search.results import Outcome, Params, PredictedMemory, Trial
from search.units import format_bytes, shown

NOT_PREDICTED = "not predicted: learned from trials"
"""What is said, and recorded as the phase, wherever others have a prediction."""
_NEUTRAL = frozenset({"seed"})
_MEND = "memory.gate: false tries it all the same"


class LearnedFit:
    """Judges configurations; takes each trial that ends into account.

    Without dimensions in which memory grows nothing is learned, and so nothing is refused: what
    decides then is not known, and one trial says nothing of another.
    """

    def __init__(
        self, dimensions: Sequence[str], *, budget_bytes: int, risk: float, kind: str
    ) -> None:
        """Knows nothing yet.

        Args:
            dimensions: those in which memory never falls.
            budget_bytes: what one trial may use.
            risk: accepted probability that what is let through needs more.
            kind: of the device, `cpu` or `cuda`.
        """
        self.dimensions = tuple(dimensions)
        self.observations: tuple[Observation, ...] = ()
        self._budget_bytes, self._risk, self._scale = budget_bytes, risk, SCALES[kind]
        self._residuals: list[Residual] = []
        self._memory = LearnedMemory(self.dimensions, neutral=_NEUTRAL)
        self._calibration = self._calibrated()

    def _calibrated(self) -> Calibration:
        return Calibration((), self._residuals, self._risk, self._scale)

    def learn(self, trial: Trial) -> None:
        """Takes a trial into account that reached its peak, or ran out of memory."""
        seen = self._observed(trial)
        if seen is None or not self.dimensions:
            return
        if self._memory.tells_apart(seen.params):
            self._residuals.append(self._residual(seen))
            self._calibration = self._calibrated()
        self.observations = (*self.observations, seen)
        self._memory = LearnedMemory(self.dimensions, self.observations, neutral=_NEUTRAL)

    def _observed(self, trial: Trial) -> Observation | None:
        if trial.outcome is Outcome.OUT_OF_MEMORY:
            return Observation(params=trial.params, num_bytes=self._budget_bytes, ran_out=True)
        peak_bytes = trial.metrics.get(PEAK_MEMORY.name)
        if trial.outcome is not Outcome.COMPLETED or peak_bytes is None:
            return None
        return Observation(params=trial.params, num_bytes=round(peak_bytes))

    def _residual(self, seen: Observation) -> Residual:
        """What was expected of a trial beside what it took."""
        expected = self._memory.estimate(seen.params)
        return Residual(
            predicted_bytes=expected.expected_bytes if expected else 0,
            measured_bytes=seen.num_bytes,
            censored=seen.ran_out,
        )

    def order(self, candidates: Sequence[Params]) -> tuple[int, ...]:
        """Their places from small to large."""
        return self._memory.order(candidates) if self.dimensions else tuple(range(len(candidates)))

    def __call__(self, params: Params) -> Verdict | Unjudged:
        """Refuses what dominates a trial that ran out, and what is expected to need too much."""
        estimate = self._memory.estimate(params) if self.dimensions else None
        if estimate is None:
            return Unjudged(params=params)
        ruled_out_by = self._memory.ruled_out_by(params)
        if ruled_out_by is not None or estimate.low_bytes > self._budget_bytes:
            return self._refused(params, estimate, ruled_out_by)
        predicted = self._predicted(params, estimate)
        if predicted is None:
            return Unjudged(params=params)
        if predicted.high_bytes <= self._budget_bytes:
            return Fits(params=params, predicted=predicted)
        return self._too_much(params, predicted)

    def _predicted(self, params: Params, estimate: Estimate) -> PredictedMemory | None:
        """The estimate with its interval; None where too little ran for one.

        A larger trial that fitted is enough by itself.
        """
        high_bytes: float = math.inf if estimate.high_bytes is None else estimate.high_bytes
        if self._memory.tells_apart(params):
            high_bytes = min(high_bytes, self._calibration.interval(estimate.expected_bytes)[1])
        elif high_bytes > self._budget_bytes:
            return None
        return PredictedMemory(
            expected_bytes=estimate.expected_bytes,
            low_bytes=estimate.low_bytes,
            high_bytes=max(estimate.expected_bytes, int(high_bytes)),
            phase=NOT_PREDICTED,
        )

    def _too_much(self, params: Params, predicted: PredictedMemory) -> DoesNotFit:
        needed = (
            f"expected to need {format_bytes(predicted.expected_bytes)}, up to "
            f"{format_bytes(predicted.high_bytes)}, of {format_bytes(self._budget_bytes)}"
        )
        return self._verdict(params, predicted, needed)

    def _refused(
        self, params: Params, estimate: Estimate, ruled_out_by: Observation | None
    ) -> DoesNotFit:
        """What is nowhere smaller than a trial that needed more than there is."""
        most_bytes = max(estimate.expected_bytes, self._budget_bytes + 1)
        predicted = PredictedMemory(
            expected_bytes=most_bytes,
            low_bytes=estimate.low_bytes,
            high_bytes=most_bytes,
            phase=NOT_PREDICTED,
        )
        budget = format_bytes(self._budget_bytes)
        if ruled_out_by is None:
            needed = f"a trial nowhere larger took {format_bytes(estimate.low_bytes)} of {budget}"
        else:
            needed = f"{self.sizes(ruled_out_by.params)} ran out of {budget}, this is no smaller"
        return self._verdict(params, predicted, needed)

    def sizes(self, params: Params) -> str:
        """`batch_size 64, width 128`."""
        return ", ".join(f"{name} {shown(params[name])}" for name in self.dimensions)

    def _verdict(self, params: Params, predicted: PredictedMemory, needed: str) -> DoesNotFit:
        return DoesNotFit(
            params=params,
            predicted=predicted,
            budget_bytes=self._budget_bytes,
            excess_bytes=predicted.high_bytes - self._budget_bytes,
            reason=f"{NOT_PREDICTED}: {needed}; {_MEND}",
        )
