"""What is measured about a trial: its name, which way is better, its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Goal(StrEnum):
    """Which way is better."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A named figure of a trial. Its `unit` is empty, `B`, `s`, `tokens/s`, ..."""

    name: str
    goal: Goal
    unit: str = ""
    section: str = "quality"

    def oriented(self, value: float) -> float:
        """The value such that lower is better; its own inverse."""
        return -value if self.goal is Goal.MAX else value


TOKENS_PER_SECOND = Metric(
    name="tokens_per_second", goal=Goal.MAX, unit="tokens/s", section="speed"
)
PEAK_MEMORY = Metric(name="peak_memory", goal=Goal.MIN, unit="B", section="memory")
TRAINING_METRICS = (TOKENS_PER_SECOND, PEAK_MEMORY)
"""What `search.training` and `search.memory.measurement` measure of every trial."""
ENERGY_PER_TOKEN = Metric(name="energy_per_token", goal=Goal.MIN, unit="J", section="cost")
COST_PER_MILLION_TOKENS = Metric(name="cost_per_million_tokens", goal=Goal.MIN, section="cost")
MFU = Metric(name="mfu", goal=Goal.MAX, section="speed")
"""Model FLOP utilization: the share of a GPU's peak that training reached, from 0 to 1."""
EFFICIENCY_METRICS = (ENERGY_PER_TOKEN, COST_PER_MILLION_TOKENS, MFU)
"""Of a trial where they can be had: a counter of energy, a price, a peak. Else they are absent."""
KNOWN_METRICS = (*TRAINING_METRICS, *EFFICIENCY_METRICS)
"""All that a trial may have besides the metrics of its objective."""
DERIVED_METRICS = (COST_PER_MILLION_TOKENS, MFU)
"""Those that follow from the others once a trial has ended."""


def oriented_values(
    metrics: tuple[Metric, ...], values: Mapping[str, float]
) -> tuple[float, ...] | None:
    """One value per metric, lower is better; None when one of them is missing."""
    if any(metric.name not in values for metric in metrics):
        return None
    return tuple(metric.oriented(values[metric.name]) for metric in metrics)
