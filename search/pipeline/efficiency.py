"""The metrics that hang on a price, a peak or a counter: from what they follow, and who has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from search.errors import Fault, FileFaultsError
from search.metric import COST_PER_MILLION_TOKENS, ENERGY_PER_TOKEN, MFU, TOKENS_PER_SECOND
from search.objective import Untraced

if TYPE_CHECKING:
    from pathlib import Path

    from search.memory.device import Device
    from search.pipeline.learning import UntracedStage
    from search.pipeline.staging import Stage
    from search.results import Trial
    from search.sweep.file import LoadedSweep
    from search.trials.bookkeeping import Derived
    from search.trials.placement import Slots


def derived_of(stage: Stage | UntracedStage) -> Derived:
    """What follows from a completed trial: its cost where there is a price, its MFU on a GPU."""
    from search.memory.speed import cost_per_million_tokens

    price = stage.loaded.sweep.resources.price_per_hour

    def derived(trial: Trial) -> dict[str, float]:
        found: dict[str, float] = {}
        speed = trial.metrics.get(TOKENS_PER_SECOND.name)
        if speed and price:
            found[COST_PER_MILLION_TOKENS.name] = cost_per_million_tokens(price, speed)
        if speed and (share := _utilization(stage, trial, speed)) is not None:
            found[MFU.name] = share
        return found

    return derived


def _utilization(
    stage: Stage | UntracedStage, trial: Trial, tokens_per_second: float
) -> float | None:
    """None on a CPU, without a known peak, for what is not traced, and of several ranks.

    What checkpointing computes again is no work of the model.
    """
    from search.memory.rates import rates_by_data_sheet
    from search.memory.speed import utilization
    from search.pipeline.staging import Stage
    from search.training_params import TrainingParams
    from search.trials.placement import world_size_of

    rates = rates_by_data_sheet(stage.device)
    if rates is None or not isinstance(stage, Stage) or world_size_of(trial.params) > 1:
        return None
    params = {**trial.params, "activation_checkpointing": False}
    per_step = TrainingParams.of(params).batch_size * stage.objective.tokens_per_sample(params)
    try:
        work = stage.predict.work(params)
    except (Exception, SystemExit):  # noqa: BLE001 - to count runs the user's own model
        return None
    return utilization(work, rates, steps_per_second=tokens_per_second / per_step)


def refuse_unmeasured(loaded: LoadedSweep, device: Device, placed: Slots, *, path: Path) -> None:
    """Returns when all objectives of a file can be had here: an absent value is not made up.

    Raises:
        FileFaultsError: with those that cannot.
    """
    if faults := list(_unmeasured(loaded, device, placed)):
        raise FileFaultsError(str(path), faults)


def _unmeasured(loaded: LoadedSweep, device: Device, placed: Slots) -> Iterator[Fault]:
    goals, untraced = loaded.sweep.objectives, isinstance(loaded.objective, Untraced)
    if COST_PER_MILLION_TOKENS.name in goals and loaded.sweep.resources.price_per_hour is None:
        message = "follows from a price, and none is given (set resources.price_per_hour)"
        yield Fault(place=f"objectives.{COST_PER_MILLION_TOKENS.name}", message=message)
    if MFU.name in goals and (untraced or not _has_peak(device)):
        what = (
            "an objective's own step"
            if untraced
            else f"a GPU whose peak is known, not {device.name}"
        )
        message = f"is measured of {what} (leave it out)"
        yield Fault(place=f"objectives.{MFU.name}", message=message)
    if ENERGY_PER_TOKEN.name in goals and not untraced and (why := _uncounted(device, placed)):
        yield Fault(place=f"objectives.{ENERGY_PER_TOKEN.name}", message=why)


def _has_peak(device: Device) -> bool:
    from search.memory.rates import rates_by_data_sheet

    return rates_by_data_sheet(device) is not None


def _uncounted(device: Device, placed: Slots) -> str:
    """Why the energy of a trial cannot be told; empty where it can."""
    from search.memory.energy import energy_meter

    if not energy_meter(device).works:
        return f"{device.name} tells no energy to this user (leave it out)"
    if not placed.gpus and placed.num_slots > 1:
        return (
            f"the counter is one for all of the {placed.num_slots} trials at once "
            "(set resources.concurrent to 1)"
        )
    return ""
