"""From a sweep file to its trials: init, schema, plan, sweep, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from search import home
from search.errors import InputError
from search.pipeline.screen import StopRequest, console, print_json, say
from search.pipeline.showing import show_results, standing_of

if TYPE_CHECKING:
    from search.home import Manifest, SweepHome
    from search.memory.device import Device
    from search.memory.feasibility import Verdict
    from search.plan import Plan
    from search.results import Params
    from search.sweep.file import LoadedSweep
    from search.tracking.record import Recorder
    from search.trials.placement import Slots
    from search.trials.run import Event


def init(path: Path) -> None:
    """Writes the starter sweep file, never over another file."""
    from search.sweep.starter import STARTER

    if path.exists():
        msg = f"{path} exists already (give another name: paretune init NAME.yaml)"
        raise InputError(msg)
    path.write_text(STARTER, encoding="utf-8")
    say(f"wrote {path}; next: paretune plan {path}, then paretune sweep {path}")


def schema() -> None:
    """Prints the JSON Schema of sweep files."""
    from search.sweep.file import sweep_schema

    print_json(sweep_schema())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What a sweep is judged and run with."""

    loaded: LoadedSweep
    device: Device
    slots: Slots
    fits: Callable[[Params], Verdict]


def _prepare(path: Path, *, budget_bytes: int | None = None) -> _Stage:
    """Reads a sweep file for this machine; `budget_bytes` is that of a sweep begun before."""
    from search.memory.device import device_here
    from search.memory.feasibility import judge
    from search.memory.measurement import overhead_bytes
    from search.memory.prediction import Predictor
    from search.sweep.file import read_sweep
    from search.trials.placement import slots

    device = device_here()
    loaded = read_sweep(path, capacity_bytes=device.capacity_bytes)
    _refuse_absent_device(loaded, device)
    placed = slots(loaded.sweep, device)
    placed = replace(placed, budget_bytes=budget_bytes or placed.budget_bytes)
    with console.status("measuring what this machine adds to a trial's tensors (once)"):
        overhead = overhead_bytes(device)
    predict = Predictor(loaded.objective, overhead_bytes=overhead)
    return _Stage(
        loaded=loaded,
        device=device,
        slots=placed,
        fits=lambda params: judge(params, predict, placed.budget_bytes),
    )


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
    from search.screens import plan_summary, plan_table

    planned = _planned(_prepare(path))
    if as_json:
        print_json(planned.to_json())
        return
    console.print(plan_table(planned))
    say(plan_summary(planned))


def _planned(stage: _Stage) -> Plan:
    from search.plan import plan as plan_space

    with console.status("predicting") as status:
        return plan_space(
            stage.loaded.sweep.space,
            params_of=stage.loaded.params_of,
            fits=stage.fits,
            budget_bytes=stage.slots.budget_bytes,
            on_point=lambda done, total: status.update(f"predicting {done}/{total}"),
        )


def _predict_ahead(stage: _Stage) -> None:
    """Predicts a small space before its sweep starts: later that would disturb measured speeds."""
    from search.plan import can_be_predicted_ahead
    from search.screens import plan_summary

    if can_be_predicted_ahead(stage.loaded.sweep.space):
        say(plan_summary(_planned(stage)))


def sweep(path: Path, *, address: str | None) -> bool:
    """Runs a new sweep; whether it was stopped before its end."""
    from search.tracking.store import store_uri

    stage = _prepare(path)
    name = stage.loaded.sweep.name
    home.refuse_existing(name)
    manifest = _manifest(stage, tracking_uri=store_uri())
    _predict_ahead(stage)
    with _recorder(stage, manifest) as recorder:
        folder = home.create_home(name, sweep_text=stage.loaded.text, manifest=manifest)
        return _run(stage, folder, recorder, address=address)


def resume(name: str, *, address: str | None) -> bool:
    """Goes on with a sweep; whether it was stopped again before its end."""
    from search.trials.ledger import Ledger

    folder = home.open_home(name)
    manifest = folder.manifest()
    stage = _prepare(folder.sweep_file, budget_bytes=manifest.budget_bytes)
    with _recorder(stage, manifest) as recorder:
        state = Ledger(folder.folder).read()
        if standing_of(folder, state).state == "finished":
            recorder.finish(state.trials, state.refused)
            say(f"{name} is finished: nothing is left to run")
            return False
        return _run(stage, folder, recorder, address=address)


def _manifest(stage: _Stage, *, tracking_uri: str) -> Manifest:
    from search.home import Manifest
    from search.metric import TRAINING_METRICS

    sweep, objective = stage.loaded.sweep, stage.loaded.objective
    metrics = {metric.name: metric for metric in (*objective.metrics, *TRAINING_METRICS)}
    return Manifest(
        sweep_id=home.new_sweep_id(),
        created_at=home.now(),
        tracking_uri=tracking_uri,
        objective=sweep.objective,
        data=sweep.data,
        dimensions=tuple(sweep.space),
        objectives=tuple(metrics[name] for name in sweep.objectives),
        metrics=tuple(metrics.values()),
        num_trials=sweep.trials,
        num_tokens=sweep.trial.tokens,
        budget_bytes=stage.slots.budget_bytes,
        cpus=stage.slots.cpus,
        provenance={**objective.provenance, "device": stage.device.name},
    )


@contextmanager
def _recorder(stage: _Stage, manifest: Manifest) -> Iterator[Recorder]:
    from search.tracking.entries import RecordedSweep
    from search.tracking.record import Recorder

    sweep = stage.loaded.sweep
    recorder = Recorder.open(
        manifest.tracking_uri,
        RecordedSweep(
            name=sweep.name,
            sweep_id=manifest.sweep_id,
            objectives=manifest.objectives,
            metrics=manifest.metrics,
            dimensions=manifest.dimensions,
            log_dimensions=sweep.space.log_names(),
            text=stage.loaded.text,
            description=sweep.description,
            provenance=manifest.provenance,
        ),
    )
    try:
        yield recorder
    finally:
        unwritten = recorder.close()
        if unwritten is not None:
            say(f"{unwritten}; 'paretune sweep --resume {sweep.name}' writes it again")


def _run(stage: _Stage, folder: SweepHome, recorder: Recorder, *, address: str | None) -> bool:
    from search.progress import SweepProgress
    from search.tracking.entries import RunStatus
    from search.trials.ledger import Ledger
    from search.trials.run import run_sweep

    ledger = Ledger(folder.folder)
    before = ledger.read()
    progress = SweepProgress(
        console,
        num_trials=stage.loaded.sweep.trials,
        metrics=folder.manifest().objectives,
        dimensions=folder.manifest().dimensions,
    )
    progress.seed(before.trials, before.refused)

    def heard(event: Event) -> None:
        progress(event)
        recorder.record_event(event)

    status = RunStatus.FAILED
    stop = StopRequest(folder.stop_request)
    try:
        with ledger.claim(), progress, stop.on_interrupt():
            recorder.reconcile(before.trials)
            run_sweep(
                sweep=stage.loaded.sweep,
                fits=stage.fits,
                params_of=stage.loaded.params_of,
                slots=stage.slots,
                device=stage.device,
                ledger=ledger,
                on_event=heard,
                stop=stop,
                address=address,
            )
        status = RunStatus.KILLED if stop.is_set() else RunStatus.FINISHED
    finally:
        state = ledger.read()
        recorder.finish(state.trials, state.refused, status)
        show_results(folder, state, recorder.url)
    if stop.is_set():
        say(f"stopped; go on with: paretune sweep --resume {folder.name}")
    return stop.is_set()
