"""From a sweep file to what of it fits: init, schema, plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from search import home
from search.errors import InputError
from search.pipeline.learning import UntracedStage, show_plan
from search.pipeline.screen import console, print_json, say, show_table
from search.pipeline.staging import prepare_plan
from search.units import format_bytes

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.memory.feasibility import DoesNotFit
    from search.memory.mend import Mend
    from search.memory.speed import Rates, Speed
    from search.pipeline.staging import Stage
    from search.plan import Plan
    from search.results import Params


def init(path: Path) -> None:
    """Writes the starter sweep file, never over another file."""
    from search.sweep.starter import STARTER

    if path.exists():
        msg = f"{path} exists already (give another name: paretune init NAME.yaml)"
        raise InputError(msg)
    home.write_for_user(path, STARTER)
    say(f"wrote {path}; next: paretune plan {path}, then paretune sweep {path}")


def schema() -> None:
    """Prints the JSON Schema of sweep files."""
    from search.sweep.file import sweep_schema

    print_json(sweep_schema())


def plan(path: Path, *, device_name: str | None = None, as_json: bool) -> None:
    """Judges the sweep's space and prints what fits. No Ray, no MLflow, nothing trained.

    `device_name` is that of any GPU; default: the file's own, else the device that is here.
    """
    from search.plan_screens import explained_speeds, plan_table

    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # an objective's own words
        stage = prepare_plan(path, device_name=device_name)
    if isinstance(stage, UntracedStage):
        show_plan(stage, as_json=as_json)
        return
    if as_json:
        with redirect_stdout(sys.stderr):
            found = _planned_in_full(stage, ratios_of(stage))
        print_json(found.to_json())
        refuse_unpredictable(stage, found)
        return
    ratios = ratios_of(stage)
    found = _planned_in_full(stage, ratios)
    if found.points:
        show_table(plan_table(found))
    _say_summary(found)
    if not stage.is_here:
        say(_described(stage.device))
    say(stage.margins.explain())
    if any(point.speed for point in found.points):
        say(explained_speeds(len(ratios)))
    refuse_unpredictable(stage, found)


def _described(device: Device) -> str:
    """What is known of a device that is not here, as the plan hangs on it."""
    capacity, context = format_bytes(device.capacity_bytes), device.context
    sentence = f"planned for {device.name}: {capacity}"
    if context is None:
        return sentence
    return (
        f"{sentence}, of which the CUDA context takes {format_bytes(context.expected_bytes)} "
        f"({format_bytes(context.low_bytes)} to {format_bytes(context.high_bytes)})"
    )


def _say_summary(found: Plan) -> None:
    from search.plan_screens import plan_faults, plan_summary

    say(plan_summary(found))
    if faults := plan_faults(found):
        say(faults)


def refuse_unpredictable(stage: Stage, found: Plan) -> None:
    """Says what would be predicted wrongly, where the gate is off and it is trained all the same.

    Raises:
        InputError: where the gate is on.
    """
    from search.plan_screens import plan_refusals

    refusals = plan_refusals(found)
    if refusals and stage.loaded.sweep.memory.gate:
        raise InputError(refusals)
    if refusals:
        say(refusals)


def planned(
    stage: Stage,
    *,
    as_a_whole: bool = False,
    mend: Callable[[DoesNotFit], Mend | None] = lambda _: None,
    speed: Callable[[Params], Speed | None] = lambda _: None,
) -> Plan:
    """What of a stage's space fits; mends and estimates of speed where they are asked for.

    `as_a_whole` a space that is too large to judge each structure is counted, where else a spread
    of them stands for it.
    """
    from search.plan import plan as plan_space
    from search.wide_plan import plan_wide

    wide = stage.wide if as_a_whole else None
    find = (
        partial(plan_wide, wide, peak_bytes=stage.predict.peak_bytes)
        if wide
        else partial(plan_space, stage.loaded.memory_space, params_of=stage.loaded.params_of)
    )
    with console.status("predicting") as status:
        found = find(
            fits=stage.fits,
            budget_bytes=stage.slots.budget_bytes,
            on_point=lambda done, total: status.update(f"predicting {done}/{total}"),
            mend=mend,
            speed=speed,
        )
    return replace(found, point_by_point=stage.predict.point_by_point)


def ratios_of(stage: Stage) -> tuple[float, ...]:
    """Measured over estimated speeds of the trials that ended on a stage's device."""
    from search.memory.speed_records import recorded_ratios

    return recorded_ratios(stage.device, basis=stage.basis, cpus=stage.slots.cpus)


def _planned_in_full(stage: Stage, ratios: Sequence[float]) -> Plan:
    from search.memory.mend import cheapest_mend
    from search.memory.rates import rates_by

    @cache
    def rates() -> Rates | None:
        return rates_by(stage.basis, stage.device)

    space = stage.loaded.sweep.space
    searched = {name: dimension.values() or () for name, dimension in space.items()}

    def mend(refused: DoesNotFit) -> Mend | None:
        known = rates()
        if known is None:
            return None
        return cheapest_mend(refused, stage.predict, known, searched=searched)

    def speed(params: Params) -> Speed | None:
        known = rates()
        return stage.predict.known_speed(params, known, ratios) if known else None

    return planned(stage, as_a_whole=True, mend=mend, speed=speed)


def predict_ahead(stage: Stage | UntracedStage) -> None:
    """Predicts a small space before its sweep starts: later that would disturb measured speeds."""
    from search.plan import can_be_predicted_ahead

    if isinstance(stage, UntracedStage):
        say(stage.explain())
        return
    if can_be_predicted_ahead(stage.loaded.memory_space):
        found = planned(stage)
        _say_summary(found)
        refuse_unpredictable(stage, found)
