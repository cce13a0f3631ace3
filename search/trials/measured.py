"""What is measured of a trial that trains in this process, filled in as it goes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from search.metric import DERIVED_METRICS, ENERGY_PER_TOKEN, PEAK_MEMORY, TOKENS_PER_SECOND
from search.results import Outcome, ParamValue
from search.trials.steps import Steps

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.memory.energy import EnergyMeter
    from search.memory.measurement import Peak
    from search.training import TrainingRun


class EndedError(Exception):
    """A trial that ends before its time for a known reason."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(slots=True, kw_only=True)
class Measured:
    """Steps, metrics and details of one trial so far."""

    steps: Steps = field(default_factory=Steps)
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, ParamValue] = field(default_factory=dict)
    overflows_in_a_row: int = 0

    @contextmanager
    def within(self, budget_bytes: int, device: Device) -> Iterator[Peak]:
        """Round a block that has so many bytes: its peak counts, even where it breaks off."""
        from search.memory.measurement import enforce_budget, measure_peak

        peak = None
        try:
            with measure_peak(device) as peak, enforce_budget(device, budget_bytes):
                yield peak
        finally:
            if peak is not None:
                before = self.metrics.get(PEAK_MEMORY.name, 0.0)
                self.metrics[PEAK_MEMORY.name] = max(before, float(peak.num_bytes))

    def note(self, values: Mapping[str, float], source: str) -> None:
        """Takes what an evaluation gave. Raises EndedError when some of it is not finite."""
        given = {name: float(value) for name, value in values.items()}
        self.metrics.update({name: each for name, each in given.items() if math.isfinite(each)})
        for name, value in given.items():
            if not math.isfinite(value):
                raise EndedError(Outcome.DIVERGED, f"{source} gave {name} = {value:g}")

    def note_energy(self, meter: EnergyMeter | None, run: TrainingRun) -> None:
        """Joules a token from the first step on, where the device tells."""
        joules = meter.joules() if meter else None
        if joules:
            self.metrics[ENERGY_PER_TOKEN.name] = joules / run.tokens_seen

    def note_speed(self) -> None:
        """Tokens per second in steady state; from how many steps, and their spread, as details."""
        if not self.steps.tokens:
            return
        self.details["num_timed_steps"] = len(self.steps.speeds)
        if self.steps.spread is not None:
            self.details["tokens_per_second_spread"] = self.steps.spread
        self.metrics[TOKENS_PER_SECOND.name] = self.steps.tokens_per_second

    def require(self, objectives: Sequence[str]) -> None:
        """Raises EndedError when a trial that is over lacks some that follow from no others."""
        derived = (metric.name for metric in DERIVED_METRICS)
        measured = {*self.metrics, TOKENS_PER_SECOND.name, PEAK_MEMORY.name, *derived}
        if missing := [name for name in objectives if name not in measured]:
            given = ", ".join(name for name in self.metrics if name != PEAK_MEMORY.name)
            msg = f"the evaluation gave no {', '.join(missing)} (it gave {given})"
            raise EndedError(Outcome.FAILED, msg)
