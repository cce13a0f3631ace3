"""A sweep file made ready for a device: what it is judged and run with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from search.errors import InputError
from search.objective import Untraced
from search.pipeline.efficiency import refuse_unmeasured
from search.pipeline.learning import UntracedStage, untraced_stage
from search.pipeline.screen import console

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.memory.feasibility import Verdict
    from search.memory.machine import CpuMemory, GpuMemory, Machine
    from search.memory.margins import Margins
    from search.memory.prediction import Predictor
    from search.memory.rates import Basis
    from search.objective import Objective
    from search.results import Params, ParamValue
    from search.sweep.file import LoadedSweep
    from search.sweep.sweep import Sweep
    from search.trials.placement import Slots
    from search.wide_space import WideSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a sweep is judged and run with. `is_here` is False for a device that is only planned.

    `wide` is its space where that has too many structures to judge each.
    """

    loaded: LoadedSweep
    objective: Objective
    device: Device
    is_here: bool
    slots: Slots
    fits: Callable[[Params], Verdict]
    predict: Predictor
    margins: Margins
    wide: WideSpace | None = None

    @property
    def num_tokens(self) -> int:
        """What each finished trial trains on."""
        return self.loaded.sweep.trial.tokens or 0

    @property
    def basis(self) -> Basis:
        """Where rates come from: measured on the device that is here, else its data sheet."""
        from search.memory.rates import Basis

        return Basis.MEASURED if self.is_here else Basis.DATA_SHEET


def prepare(path: Path, *, budget_bytes: int | None = None) -> Stage | UntracedStage:
    """Reads a sweep file for this machine; `budget_bytes` is that of a sweep begun before.

    Raises:
        InputError: when the file asks for a device that is not here.
        FileFaultsError: when it has faults, such as objectives that cannot be had here.
    """
    from search.memory.device import device_here
    from search.sweep.file import read_sweep
    from search.trials.placement import slots

    device = device_here()
    loaded = read_sweep(path, capacity_bytes=device.capacity_bytes)
    _refuse_absent_device(loaded, device)
    placed = slots(loaded.sweep, device)
    placed = replace(placed, budget_bytes=budget_bytes or placed.budget_bytes)
    refuse_unmeasured(loaded, device, placed, path=path)
    if isinstance(loaded.objective, Untraced):
        return untraced_stage(loaded, device, placed)
    return _stage(loaded, device, placed, is_here=True)


def prepare_plan(path: Path, *, device_name: str | None = None) -> Stage | UntracedStage:
    """Reads a sweep file for any device: the one named, the file's own, or the one that is here."""
    from search.memory.device import device_here
    from search.sweep.file import read_sweep

    here = device_here()
    device = _device(device_name, here)
    loaded = read_sweep(path, capacity_bytes=device.capacity_bytes)
    device = _device(device_name or loaded.sweep.memory.device, here)
    if device is here:
        return prepare(path)
    return _stage(loaded, device, _planned_slots(loaded.sweep, device), is_here=False)


def prepare_comparison(path: Path, device_names: Sequence[str]) -> tuple[Stage, ...]:
    """Reads a sweep file once for several devices, each judged by all it has.

    Devices that take the same memory, as those of one architecture do, share what is traced.

    Raises:
        InputError: when two names mean the same device.
    """
    from search.memory.device import device_here
    from search.sweep.file import read_sweep

    here = device_here()
    devices = [_device(name, here) for name in device_names]
    _refuse_repeated(devices, device_names)
    most_bytes = max(device.capacity_bytes for device in (here, *devices))
    loaded = read_sweep(path, capacity_bytes=most_bytes)
    loaded = replace(loaded, sweep=_without_budget(loaded.sweep))
    stages: list[Stage] = []
    traced: dict[Machine, Predictor] = {}
    for device in devices:
        machine, placed = machine_of(device), _planned_slots(loaded.sweep, device)
        stage = _stage(loaded, device, placed, is_here=device is here, predict=traced.get(machine))
        traced.setdefault(machine, stage.predict)
        stages.append(stage)
    return tuple(stages)


def _refuse_repeated(devices: Sequence[Device], names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for device, name in zip(devices, names, strict=True):
        other = seen.setdefault(device.name, name)
        if other is not name:
            msg = f"--device: {other!r} and {name!r} are both {device.name} (name it once)"
            raise InputError(msg)


def _without_budget(sweep: Sweep) -> Sweep:
    return sweep.model_copy(update={"memory": sweep.memory.model_copy(update={"budget": None})})


def _device(name: str | None, here: Device) -> Device:
    """The device of a name; the one that is here where it is meant, or none is named."""
    from search.memory.catalogue import device_named, is_named

    return here if name is None or is_named(here, name) else device_named(name)


def _planned_slots(sweep: Sweep, device: Device) -> Slots:
    """One trial that has the device to itself, within what it has for sure."""
    from search.trials.placement import Slots

    capacity_bytes = device.capacity.low_bytes if device.capacity else device.capacity_bytes
    return Slots(
        num_slots=1,
        budget_bytes=sweep.memory.budget or capacity_bytes,
        cpus=sweep.resources.cpus,
        gpus=1,
    )


def _stage(
    loaded: LoadedSweep,
    device: Device,
    placed: Slots,
    *,
    is_here: bool,
    predict: Predictor | None = None,
) -> Stage:
    """A stage; `predict` is one that was made for a device that takes the same memory."""
    from search.memory.feasibility import judge
    from search.memory.margins import Margins
    from search.memory.prediction import Predictor
    from search.plan import structure_points

    objective = _traced(loaded, device)
    rescue = _rescue(loaded)
    structures, is_complete = structure_points(loaded.memory_space)
    wide = None if is_complete else _wide(loaded, objective, structures[0])
    announced = wide.spread() if wide else structures
    margins = Margins(device, risk=loaded.sweep.memory.risk)
    predict = (
        predict.with_margins(margins)
        if predict
        else Predictor(
            objective,
            machine_of(device),
            space=_with_changes(map(loaded.params_of, announced), rescue),
            margins=margins,
            deployment=loaded.deployment,
        )
    )
    return Stage(
        loaded=loaded,
        objective=objective,
        device=device,
        is_here=is_here,
        slots=placed,
        fits=lambda params: judge(
            params, predict, placed.budget_bytes, rescue=rescue, completes=predict.completes
        ),
        predict=predict,
        margins=margins,
        wide=wide,
    )


def _wide(
    loaded: LoadedSweep, objective: Objective, structure: Mapping[str, ParamValue]
) -> WideSpace | None:
    """The space, where it has too many structures to judge each; `structure` is any of them."""
    from search.memory.program_fit import length_dimension
    from search.wide_space import WideSpace

    length = length_dimension(objective, loaded.params_of(structure))
    wide = WideSpace(space=loaded.memory_space, params_of=loaded.params_of, length=length)
    return wide if wide.is_wide else None


def _traced(loaded: LoadedSweep, device: Device) -> Objective:
    """The objective. Raises InputError when there is none, and so nothing to predict by."""
    if isinstance(loaded.objective, Untraced):
        msg = (
            f"{loaded.objective.named} cannot be planned for {device.name}: its memory is learned "
            "from its own trials, on the device that is here (leave the device out)"
        )
        raise InputError(msg)
    return loaded.objective


def machine_of(device: Device) -> GpuMemory | CpuMemory:
    """How memory is counted on a device, this machine's constant measured where it is needed."""
    from search.memory.machine import CpuMemory, GpuMemory
    from search.memory.measurement import overhead_bytes

    if device.architecture is not None and device.context is not None:
        return GpuMemory(
            architecture=device.architecture, context=device.context, workspaces=device.workspaces
        )
    with console.status("measuring what this machine adds to a trial's tensors (once)"):
        return CpuMemory(overhead_bytes=overhead_bytes(device))


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
    from search.memory.ways import changed

    for params in space:
        yield params
        yield from changed(params)
        yield from ({**params, **change} for change in rescues(params, rescue))


def _refuse_absent_device(loaded: LoadedSweep, device: Device) -> None:
    from search.memory.catalogue import is_named

    wanted = loaded.sweep.memory.device
    if wanted is not None and not is_named(device, wanted):
        msg = (
            f"memory.device: {wanted!r} is not here, {device.name!r} is "
            "(leave memory.device out, or name the one that is here; what would fit on the other: "
            "paretune plan)"
        )
        raise InputError(msg)
