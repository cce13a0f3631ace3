"""From a sweep file to what of it fits: init, schema, plan."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from search import home
from search.errors import InputError
from search.pipeline.screen import console, print_json, say, show_table
from search.pipeline.staging import prepare_plan
from search.units import format_bytes

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.memory.feasibility import DoesNotFit
    from search.memory.mend import Mend
    from search.memory.speed import Rates
    from search.pipeline.staging import Stage
    from search.plan import Plan


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
    from search.screens import plan_table

    if as_json:
        with redirect_stdout(sys.stderr):  # the objective's own words are no JSON
            planned = _planned_with_mends(prepare_plan(path, device_name=device_name))
        print_json(planned.to_json())
        return
    stage = prepare_plan(path, device_name=device_name)
    planned = _planned_with_mends(stage)
    if planned.points:
        show_table(plan_table(planned))
    _say_summary(planned)
    if not stage.is_here:
        say(_described(stage.device))
    say(stage.margins.explain())


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


def _say_summary(planned: Plan) -> None:
    from search.screens import plan_faults, plan_summary

    say(plan_summary(planned))
    if faults := plan_faults(planned):
        say(faults)


def _planned(stage: Stage, mend: Callable[[DoesNotFit], Mend | None] = lambda _: None) -> Plan:
    from search.plan import plan as plan_space

    with console.status("predicting") as status:
        found = plan_space(
            stage.loaded.sweep.space,
            params_of=stage.loaded.params_of,
            fits=stage.fits,
            budget_bytes=stage.slots.budget_bytes,
            on_point=lambda done, total: status.update(f"predicting {done}/{total}"),
            mend=mend,
        )
    return replace(found, point_by_point=stage.predict.point_by_point)


def _planned_with_mends(stage: Stage) -> Plan:
    from search.memory.mend import cheapest_mend
    from search.memory.rates import rates_by_data_sheet, rates_here

    @cache
    def rates() -> Rates | None:
        return rates_here(stage.device) if stage.is_here else rates_by_data_sheet(stage.device)

    space = stage.loaded.sweep.space
    searched = {name: dimension.values() or () for name, dimension in space.items()}

    def mend(refused: DoesNotFit) -> Mend | None:
        known = rates()
        if known is None:
            return None
        return cheapest_mend(refused, stage.predict, known, searched=searched)

    return _planned(stage, mend)


def predict_ahead(stage: Stage) -> None:
    """Predicts a small space before its sweep starts: later that would disturb measured speeds."""
    from search.plan import can_be_predicted_ahead

    if can_be_predicted_ahead(stage.loaded.sweep.space):
        _say_summary(_planned(stage))
