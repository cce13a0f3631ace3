"""Whether a configuration fits a budget, and what is to be said of it if not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from search.errors import MachineError
from search.results import Params, PredictedMemory
from search.training_params import TrainingParams, micro_batch_size
from search.units import format_bytes, shown

Predict = Callable[[Params], PredictedMemory]
Completes = Callable[[Params, int], bool]

RESCUES = ("micro_batch_size", "activation_checkpointing")
"""Dimensions that may be changed to make a configuration fit: the batch and what is learned from
it stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """It may be trained; `params` carry the resolved micro-batch size.

    `rescued` says what of them was changed so that it fits; empty where nothing was.
    """

    params: Params
    predicted: PredictedMemory
    rescued: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoesNotFit:
    """It would need `excess_bytes` more than the budget; `reason` says so in a sentence."""

    params: Params
    predicted: PredictedMemory
    budget_bytes: int
    excess_bytes: int
    reason: str


Verdict = Fits | DoesNotFit


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """Nobody can say whether it fits, so that it may be trained."""

    params: Params
    predicted: None = None


def judge(
    params: Params,
    predict: Predict,
    budget_bytes: int,
    *,
    rescue: Collection[str] = (),
    completes: Completes = lambda _, __: False,
) -> Verdict:
    """Whether the upper end of what is predicted lies within the budget.

    `micro_batch_size: auto` becomes the largest divisor of `batch_size` that fits, and 1 where
    none does.

    Args:
        params: the whole configuration.
        predict: its memory, for a resolved micro-batch size.
        budget_bytes: what one trial may use.
        rescue: which of `RESCUES` may be changed in what does not fit: first the micro-batch
            size, which costs the least time, then checkpointing, then both.
        completes: whether a run ends well within some bytes though it would take more where there
            is more, as on a GPU, where cached memory is given back before memory runs out.
    """
    for size in _micro_batch_sizes(params):
        verdict = _judge_one({**params, "micro_batch_size": size}, predict, budget_bytes)
        if isinstance(verdict, DoesNotFit):
            verdict = _squeezed(verdict, completes)
        if isinstance(verdict, Fits):
            return verdict
    return _rescued(params, predict, budget_bytes, rescue) or verdict


def _squeezed(refused: DoesNotFit, completes: Completes) -> Verdict:
    """Fits where the run gets by with less: with the budget less the margin of the prediction."""
    predicted = refused.predicted
    margin_bytes = predicted.high_bytes - predicted.expected_bytes
    least_bytes = predicted.allocated_bytes or predicted.expected_bytes
    within_bytes = refused.budget_bytes - margin_bytes
    if least_bytes < within_bytes < predicted.expected_bytes and completes(
        refused.params, within_bytes
    ):
        return Fits(params=refused.params, predicted=predicted)
    return refused


def _micro_batch_sizes(params: Params) -> tuple[int | str, ...]:
    """What to try in order; never empty."""
    training = TrainingParams.of(params)
    if training.micro_batch_size != "auto":
        return (training.micro_batch_size,)
    size = training.samples_per_rank
    return tuple(part for part in range(size, 0, -1) if size % part == 0)


def accumulated_sizes(params: Params) -> tuple[int, ...]:
    """The divisors of the batch below its micro-batch, from the largest; none for `auto`."""
    training = TrainingParams.of(params)
    if training.micro_batch_size == "auto":
        return ()
    size = training.samples_per_rank
    return tuple(part for part in range(micro_batch_size(params) - 1, 0, -1) if size % part == 0)


def _rescued(
    params: Params, predict: Predict, budget_bytes: int, rescue: Collection[str]
) -> Fits | None:
    for change in rescues(params, rescue):
        verdict = judge_if_possible({**params, **change}, predict, budget_bytes)
        if isinstance(verdict, Fits):
            return replace(verdict, rescued=_change_in_words(change, params))
    return None


def rescues(params: Params, rescue: Collection[str]) -> Iterator[Params]:
    """The changes to try in order in what does not fit, see `judge`."""
    sizes = accumulated_sizes(params) if "micro_batch_size" in rescue else ()
    yield from ({"micro_batch_size": size} for size in sizes)
    if "activation_checkpointing" in rescue and not params.get("activation_checkpointing"):
        for size in (*_micro_batch_sizes(params), *sizes):
            yield {"activation_checkpointing": True, "micro_batch_size": size}


def judge_if_possible(params: Params, predict: Predict, budget_bytes: int) -> Verdict | None:
    """The verdict on a resolved configuration that nobody asked for; None where there is none.

    A model may refuse a change in any way.
    """
    try:
        return _judge_one(params, predict, budget_bytes)
    except MachineError:
        raise
    except (Exception, SystemExit):  # noqa: BLE001 - see above
        return None


def _change_in_words(change: Params, params: Params) -> str:
    before = TrainingParams.of(params)
    return ", ".join(
        f"{name} {shown(value)}" for name, value in change.items() if value != getattr(before, name)
    )


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
