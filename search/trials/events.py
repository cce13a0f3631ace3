"""What is told about a running sweep, as it happens."""

from __future__ import annotations

from dataclasses import dataclass

from search.results import Params, PredictedMemory, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A configuration was launched."""

    number: int
    params: Params
    predicted: PredictedMemory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProgress:
    """A running trial reported, about once a second."""

    number: int
    tokens_seen: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A launched trial ended; the ledger has it."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRefused:
    """A configuration was not launched, as it does not fit; the ledger has it."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceExhausted:
    """Every point of the space was tried before the sweep had all its trials."""

    message: str


Event = TrialStarted | TrialProgress | TrialFinished | TrialRefused | SpaceExhausted
