"""From a sweep file to what of it fits: init, schema, plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from search import home
from search.errors import InputError
from search.pipeline.screen import console, print_json, say, show_table

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.memory.feasibility import DoesNotFit, Verdict
    from search.memory.mend import Mend
    from search.memory.prediction import Predictor
    from search.memory.speed import Rates
    from search.plan import Plan
    from search.results import Params
    from search.sweep.file import LoadedSweep
    from search.trials.placement import Slots


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a sweep is judged and run with."""

    loaded: LoadedSweep
    device: Device
    slots: Slots
    fits: Callable[[Params], Verdict]
    predict: Predictor


def prepare(path: Path, *, budget_bytes: int | None = None) -> Stage:
    """Reads a sweep file for this machine; `budget_bytes` is that of a sweep begun before."""
    from search.memory.device import device_here
    from search.memory.feasibility import judge
    from search.memory.measurement import overhead_bytes
    from search.memory.prediction import Predictor
    from search.plan import structure_points
    from search.sweep.file import read_sweep
    from search.trials.placement import slots

    device = device_here()
    loaded = read_sweep(path, capacity_bytes=device.capacity_bytes)
    _refuse_absent_device(loaded, device)
    rescue = _rescue(loaded)
    placed = slots(loaded.sweep, device)
    placed = replace(placed, budget_bytes=budget_bytes or placed.budget_bytes)
    with console.status("measuring what this machine adds to a trial's tensors (once)"):
        overhead = overhead_bytes(device)
    structures, _ = structure_points(loaded.sweep.space)
    predict = Predictor(
        loaded.objective,
        overhead_bytes=overhead,
        space=_with_changes(map(loaded.params_of, structures), rescue),
    )
    return Stage(
        loaded=loaded,
        device=device,
        slots=placed,
        fits=lambda params: judge(params, predict, placed.budget_bytes, rescue=rescue),
        predict=predict,
    )


def _rescue(loaded: LoadedSweep) -> tuple[str, ...]:
    """The dimensions that may be changed in what does not fit: none that is searched."""
    from search.memory.feasibility import RESCUES

    space, memory = loaded.sweep.space, loaded.sweep.memory
    free = tuple(name for name in RESCUES if name not in space)
    if memory.rescue and not free:
        msg = (
            f"memory.rescue: {' and '.join(RESCUES)} are both searched, so there is nothing to "
            "change (leave memory.rescue out, or take one of them out of space)"
        )
        raise InputError(msg)
    return free if memory.rescue else ()


def _with_changes(space: Iterable[Params], rescue: tuple[str, ...]) -> Iterator[Params]:
    """Each configuration, and those that may be asked for where it does not fit."""
    from search.memory.feasibility import rescues
    from search.memory.mend import changed

    for params in space:
        yield params
        yield from changed(params)
        yield from ({**params, **change} for change in rescues(params, rescue))


def _refuse_absent_device(loaded: LoadedSweep, device: Device) -> None:
    wanted = loaded.sweep.memory.device
    if wanted is not None and wanted.casefold() != device.name.casefold():
        msg = (
            f"memory.device: {wanted!r} is not here, {device.name!r} is "
            "(leave memory.device out, or name the one that is here)"
        )
        raise InputError(msg)


def plan(path: Path, *, as_json: bool) -> None:
    """Judges the sweep's space and prints what fits. No Ray, no MLflow, nothing trained."""
    from search.screens import plan_table

    if as_json:
        with redirect_stdout(sys.stderr):  # the objective's own words are no JSON
            planned = _planned_with_mends(prepare(path))
        print_json(planned.to_json())
        return
    planned = _planned_with_mends(prepare(path))
    if planned.points:
        show_table(plan_table(planned))
    _say_summary(planned)


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
    from search.memory.rates import rates_here

    @cache
    def rates() -> Rates:
        return rates_here(stage.device)

    space = stage.loaded.sweep.space
    searched = {name: dimension.values() or () for name, dimension in space.items()}
    return _planned(
        stage,
        lambda refused: cheapest_mend(refused, stage.predict, rates(), searched=searched),
    )


def predict_ahead(stage: Stage) -> None:
    """Predicts a small space before its sweep starts: later that would disturb measured speeds."""
    from search.plan import can_be_predicted_ahead

    if can_be_predicted_ahead(stage.loaded.sweep.space):
        _say_summary(_planned(stage))
