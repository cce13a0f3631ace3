"""Whether a configuration fits a budget, and what is to be said of it if not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from search.results import Params, PredictedMemory
from search.training import TrainingParams
from search.units import format_bytes

Predict = Callable[[Params], PredictedMemory]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """It may be trained; `params` carry the resolved micro-batch size."""

    params: Params
    predicted: PredictedMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class DoesNotFit:
    """It would need `excess_bytes` more than the budget; `reason` says so in a sentence."""

    params: Params
    predicted: PredictedMemory
    budget_bytes: int
    excess_bytes: int
    reason: str


Verdict = Fits | DoesNotFit


def judge(params: Params, predict: Predict, budget_bytes: int) -> Verdict:
    """Whether the upper end of what is predicted lies within the budget.

    `micro_batch_size: auto` becomes the largest divisor of `batch_size` that fits, and 1 where
    none does.
    """
    for size in _micro_batch_sizes(params):
        verdict = _judge_one({**params, "micro_batch_size": size}, predict, budget_bytes)
        if isinstance(verdict, Fits):
            return verdict
    return verdict


def _micro_batch_sizes(params: Params) -> tuple[int | str, ...]:
    """What to try in order; never empty."""
    training = TrainingParams.of(params)
    if training.micro_batch_size != "auto":
        return (training.micro_batch_size,)
    size = training.batch_size
    return tuple(part for part in range(size, 0, -1) if size % part == 0)


def _judge_one(params: Params, predict: Predict, budget_bytes: int) -> Verdict:
    predicted = predict(params)
    excess_bytes = predicted.high_bytes - budget_bytes
    if excess_bytes <= 0:
        return Fits(params=params, predicted=predicted)
    return DoesNotFit(
        params=params,
        predicted=predicted,
        budget_bytes=budget_bytes,
        excess_bytes=excess_bytes,
        reason=_reason(predicted, budget_bytes),
    )


def _reason(predicted: PredictedMemory, budget_bytes: int) -> str:
    needed, available = format_bytes(predicted.high_bytes), format_bytes(budget_bytes)
    phase = predicted.phase.replace("_", " ")
    sentence = f"needs up to {needed}, {available} is available"
    if not predicted.parts:
        return f"{sentence}; most of it in {phase} (memory.gate: false tries it all the same)"
    part, num_bytes = max(predicted.parts.items(), key=lambda item: item[1])
    return (
        f"{sentence}; {phase} decides, {format_bytes(num_bytes)} of it {part} "
        "(raise memory.budget, or set memory.gate to false to try it all the same)"
    )
