"""What happened to one configuration: predicted beside measured, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from search.metric import Metric, oriented_values

ParamValue = str | int | float | bool | None
Params = Mapping[str, ParamValue]
"""One configuration, flat: every dimension by its name, searched or fixed."""


class Outcome(StrEnum):
    """How a configuration ended. Only a completed trial can be on the front."""

    COMPLETED = "completed"
    STOPPED_EARLY = "stopped_early"
    PRUNED_BY_MEMORY = "pruned_by_memory"
    OUT_OF_MEMORY = "out_of_memory"
    DIVERGED = "diverged"
    TIMED_OUT = "timed_out"
    FAILED = "failed"

    @property
    def is_trained(self) -> bool:
        """Whether it is one of the trials a sweep asks for: trained to an end, well or badly."""
        return self not in (Outcome.PRUNED_BY_MEMORY, Outcome.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedMemory:
    """What was predicted for a trial before it started, in bytes, and what decides it.

    Expected is what the device must hold in all; `allocated_bytes` of it are blocks of tensors,
    `reserved_bytes` what torch's allocator holds for them on a GPU.
    """

    expected_bytes: int
    low_bytes: int
    high_bytes: int
    phase: str
    parts: Mapping[str, int] = field(default_factory=dict)
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A figure during training: its name, how many tokens had been trained on, its value."""

    name: str
    num_tokens: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration and what became of it.

    `metrics` holds final values by metric name in base units; `peak_memory` among them is always
    the measured one. `number` counts launched trials from 0 and refused ones apart.
    `started_at` is seconds since the epoch.
    """

    number: int
    params: Params
    outcome: Outcome
    metrics: Mapping[str, float] = field(default_factory=dict)
    predicted: PredictedMemory | None = None
    message: str = ""
    started_at: float = 0.0
    duration_seconds: float = 0.0
    curve: tuple[CurvePoint, ...] = ()
    details: Mapping[str, ParamValue] = field(default_factory=dict)

    def measured(self, metrics: tuple[Metric, ...]) -> tuple[float, ...] | None:
        """Its values such that lower is better; None unless it completed with all, each finite."""
        if self.outcome is not Outcome.COMPLETED:
            return None
        values = oriented_values(metrics, self.metrics)
        return values if values and all(map(math.isfinite, values)) else None

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` reads back to an equal trial."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The trial that `to_json` wrote."""
        predicted = record["predicted"]
        return cls(
            **{
                **record,
                "outcome": Outcome(record["outcome"]),
                "predicted": PredictedMemory(**predicted) if predicted else None,
                "curve": tuple(CurvePoint(**point) for point in record["curve"]),
            }
        )
