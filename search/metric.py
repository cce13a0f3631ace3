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


def oriented_values(
    metrics: tuple[Metric, ...], values: Mapping[str, float]
) -> tuple[float, ...] | None:
    """One value per metric, lower is better; None when one of them is missing."""
    if any(metric.name not in values for metric in metrics):
        return None
    return tuple(metric.oriented(values[metric.name]) for metric in metrics)
