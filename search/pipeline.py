"""The order of the stages, one function a command. It computes nothing.

Longer than 300 lines: it is the one list of everything a person can ask for.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from search import home
from search.errors import InputError, InterruptedRunError

if TYPE_CHECKING:
    from search.choice.export import PickedConfig
    from search.choice.pick import Pick
    from search.home import Manifest, SweepHome
    from search.memory.device import Device
    from search.memory.feasibility import Verdict
    from search.results import Params, Trial
    from search.screens import Standing
    from search.sweep.file import LoadedSweep
    from search.tracking.record import Recorder
    from search.trials.ledger import LedgerState
    from search.trials.placement import Slots
    from search.trials.production import ProductionJob
    from search.trials.run import Event

console = Console()


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


def say(text: str) -> None:
    """Prints a line as it is: no markup, no colours, no folding."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Prints plain JSON, whatever the width of the terminal."""
    say(json.dumps(value, indent=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What a sweep is judged and run with."""

    loaded: LoadedSweep
    device: Device
    slots: Slots
    fits: Callable[[Params], Verdict]


def _prepare(path: Path) -> _Stage:
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
    from search.plan import plan as plan_space
    from search.screens import plan_summary, plan_table

    stage = _prepare(path)
    with console.status("predicting") as status:
        planned = plan_space(
            stage.loaded.sweep.space,
            params_of=stage.loaded.params_of,
            fits=stage.fits,
            budget_bytes=stage.slots.budget_bytes,
            on_point=lambda done, total: status.update(f"predicting {done}/{total}"),
        )
    if as_json:
        print_json(planned.to_json())
        return
    console.print(plan_table(planned))
    say(plan_summary(planned))


def sweep(path: Path, *, address: str | None) -> bool:
    """Runs a new sweep; whether it was stopped before its end."""
    from search.tracking.store import store_uri

    stage = _prepare(path)
    name = stage.loaded.sweep.name
    home.refuse_existing(name)
    manifest = _manifest(stage, tracking_uri=store_uri())
    with _recorder(stage, manifest) as recorder:
        folder = home.create_home(name, sweep_text=stage.loaded.text, manifest=manifest)
        return _run(stage, folder, recorder, address=address)


def resume(name: str, *, address: str | None) -> bool:
    """Goes on with a sweep; whether it was stopped again before its end."""
    from search.trials.ledger import Ledger

    folder = home.open_home(name)
    manifest = folder.manifest()
    stage = _prepare(folder.sweep_file)
    with _recorder(stage, manifest) as recorder:
        state = Ledger(folder.folder).read()
        if _standing(folder, state).state == "finished":
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
    from search.trials.run import TrialFinished, run_sweep

    ledger = Ledger(folder.folder)
    before = ledger.read()
    progress = SweepProgress(
        console, num_trials=stage.loaded.sweep.trials, metrics=folder.manifest().objectives
    )
    progress.seed(before.trials, before.refused)

    def heard(event: Event) -> None:
        progress(event)
        if isinstance(event, TrialFinished):
            recorder.record(event.trial)

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
        _show_results(folder, state, recorder.url)
    if stop.is_set():
        say(f"stopped; go on with: paretune sweep --resume {folder.name}")
    return stop.is_set()


class StopRequest(threading.Event):
    """Set by Ctrl-C, or by `paretune stop` from another process through a file."""

    def __init__(self, file: Path) -> None:
        """Forgets a request that an earlier run was given."""
        super().__init__()
        self._file = file
        file.unlink(missing_ok=True)

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return super().is_set() or self._file.exists()

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Takes the first Ctrl-C as a request while it lasts; the second ends the process."""

        def asked(_signal: int, _frame: FrameType | None) -> None:
            if self.is_set():
                raise KeyboardInterrupt
            self.set()
            say("stopping at the next step; Ctrl-C again ends at once")

        before = signal.signal(signal.SIGINT, asked)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _show_results(folder: SweepHome, state: LedgerState, url: str) -> None:
    from search.choice.front import front_of

    manifest = folder.manifest()
    say(f"{folder.name}: {_standing(folder, state).line}")
    if front_of(state.trials, manifest.objectives).trials:
        _show_front(manifest, state.trials)
        say(f"next: paretune pick {folder.name}, paretune ui {folder.name} ({url})")


def _show_front(manifest: Manifest, trials: Sequence[Trial]) -> None:
    from search.choice.front import front_chart, front_of, render_front

    found = front_of(trials, manifest.objectives)
    console.print(render_front(found, manifest.dimensions))
    if len(found.metrics) > 1:
        console.print(front_chart(found))


def _standing(folder: SweepHome, state: LedgerState) -> Standing:
    from search.screens import standing
    from search.trials.ledger import Ledger

    manifest = folder.manifest()
    return standing(
        name=folder.name,
        created_at=manifest.created_at,
        running=Ledger(folder.folder).is_claimed(),
        num_trials=manifest.num_trials,
        trials=(*state.trials, *state.refused),
        num_unfinished=len(state.unfinished),
    )


def _ledger_of(folder: SweepHome) -> LedgerState:
    from search.trials.ledger import Ledger

    return Ledger(folder.folder).read()


def list_sweeps(*, as_json: bool) -> None:
    """Prints how all sweeps here stand."""
    from search.screens import standings_table

    folders = [home.open_home(name) for name in home.names()]
    standings = [_standing(folder, _ledger_of(folder)) for folder in folders]
    if as_json:
        print_json([row.to_json() for row in standings])
    elif standings:
        console.print(standings_table(standings))
    else:
        say(f"no sweep in {home.home()} yet (start one: paretune sweep SWEEP.yaml)")


def status(name: str, *, as_json: bool) -> None:
    """Prints how one sweep stands, and where its results are."""
    from search.screens import standings_table

    folder = home.open_home(name)
    row = _standing(folder, _ledger_of(folder))
    if as_json:
        print_json(row.to_json())
        return
    console.print(standings_table([row]))
    say(f"folder: {folder.folder}\nMLflow: {folder.manifest().tracking_uri}")
    if row.state == "interrupted":
        say(f"go on with: paretune sweep --resume {name}")


def stop(name: str) -> None:
    """Asks a running sweep to stop."""
    folder = home.open_home(name)
    if _standing(folder, _ledger_of(folder)).state != "running":
        msg = f"{name} is not running (see: paretune status {name})"
        raise InputError(msg)
    folder.stop_request.touch()
    say(f"{name} stops at the next step of its trials; what is done is kept")


def front(name: str, *, as_json: bool) -> None:
    """Prints the Pareto front."""
    from search.choice.front import front_of

    folder = home.open_home(name)
    manifest, trials = folder.manifest(), _ledger_of(folder).trials
    if as_json:
        print_json(front_of(trials, manifest.objectives).to_json())
    elif front_of(trials, manifest.objectives).trials:
        _show_front(manifest, trials)
    else:
        msg = f"{name}: no trial completed yet, so there is no front (see: paretune status {name})"
        raise InputError(msg)


def pick(
    name: str,
    *,
    minimize: str | None,
    maximize: str | None,
    where: Sequence[str],
    knee: bool,
    label: str,
    as_json: bool,
) -> None:
    """Picks one configuration, says why, and keeps the pick under its label."""
    from search.choice.condition import parse_condition
    from search.choice.pick import pick as choose

    home.require_label(label)
    folder = home.open_home(name)
    manifest, trials = folder.manifest(), _ledger_of(folder).trials
    params = tuple(trials[0].params) if trials else ()
    chosen = choose(
        trials,
        manifest.objectives,
        metrics=manifest.metrics,
        minimize=minimize,
        maximize=maximize,
        where=[parse_condition(text, manifest.metrics, params) for text in where],
        knee=knee,
    )
    folder.save_pick(label, chosen.to_json())
    if as_json:
        print_json({"label": label, **chosen.to_json()})
    else:
        _show_pick(manifest, chosen)
    _mark_pick(name, manifest, chosen, label)


def _show_pick(manifest: Manifest, chosen: Pick) -> None:
    from search.choice.front import param_text

    point = {name: param_text(chosen.trial.params[name]) for name in manifest.dimensions}
    say(f"trial {chosen.trial.number}: {', '.join(f'{k} {v}' for k, v in point.items())}")
    say(chosen.reason)


def _mark_pick(name: str, manifest: Manifest, chosen: Pick, label: str) -> None:
    from search.tracking.runs import mark_pick

    mark_pick(
        manifest.tracking_uri,
        sweep_name=name,
        sweep_id=manifest.sweep_id,
        number=chosen.trial.number,
        label=label,
    )


def export(name: str, *, to: str, output: Path | None, trial: int | None, label: str) -> None:
    """Writes the picked configuration with its provenance."""
    from search.choice.export import Origin, export_yaml

    if to != "yaml":
        msg = f"--to {to!r}: the one format there is, is 'yaml'"
        raise InputError(msg)
    folder = home.open_home(name)
    manifest = folder.manifest()
    text = export_yaml(
        _picked(folder, trial=trial, label=label),
        Origin(
            sweep=name,
            sweep_id=manifest.sweep_id,
            objective=manifest.objective,
            data=manifest.data,
            num_tokens=manifest.num_tokens,
            budget_bytes=manifest.budget_bytes,
            metrics=manifest.metrics,
            provenance=manifest.provenance,
        ),
    )
    if output is None:
        print(text, end="")  # noqa: T201 - the file itself, byte for byte
        return
    _write(output, text)
    say(f"wrote {output}; train it: paretune train {output}")


def _picked(folder: SweepHome, *, trial: int | None, label: str) -> Pick:
    from search.choice.pick import repicked

    trials = _ledger_of(folder).trials
    if trial is not None:
        return repicked(trials, number=trial, reason="named by --trial")
    kept = folder.load_pick(label)
    return repicked(trials, number=kept["trial"], reason=kept["reason"])


def _write(output: Path, text: str) -> None:
    try:
        home.write_atomically(output, text)
    except OSError as error:
        msg = f"--output {output}: cannot be written: {error.strerror}"
        raise InputError(msg) from error


def train(path: Path, *, num_tokens: int | None, output: Path | None) -> None:
    """Trains a picked configuration to its end, with checkpoints, and records it."""
    from rich.progress import Progress

    from search.choice.export import read_pick
    from search.memory.device import device_here
    from search.objective import load_objective
    from search.trials.production import ProductionJob
    from search.trials.production import train as train_job

    config = read_pick(path)
    job = ProductionJob(
        objective=load_objective(config.objective)(**config.data),
        params=config.params,
        num_tokens=num_tokens or config.trial.tokens,
        device=device_here(),
        folder=output or home.home() / "trained" / path.stem,
    )
    stop = StopRequest(job.folder / "stop-requested")
    with Progress(console=console) as progress, stop.on_interrupt():
        task = progress.add_task("tokens", total=job.num_tokens)

        def on_step(tokens_seen: int, loss: float) -> None:
            progress.update(task, completed=tokens_seen, description=f"loss {loss:.4f}")

        trained = train_job(job, on_step=on_step, stop=stop)
    if trained is None:
        msg = f"stopped; go on with: paretune train {path}"
        raise InterruptedRunError(msg)
    _record_production(config, path, job, trained)


def ui(name: str | None, *, port: int) -> None:
    """Runs the MLflow UI on 127.0.0.1 until it is interrupted."""
    from search.tracking.store import serve_ui, store_uri, sweep_url

    uri = home.open_home(name).manifest().tracking_uri if name else store_uri()
    say(f"MLflow of {name or 'this folder'}: {sweep_url(uri, name, port=port)} (Ctrl-C ends it)")
    serve_ui(uri, port=port)


def _record_production(config: PickedConfig, path: Path, job: ProductionJob, trial: Trial) -> None:
    from search.metric import TRAINING_METRICS
    from search.tracking.production import RecordedRun, record_production
    from search.units import format_value

    metrics = (*job.objective.metrics, *TRAINING_METRICS)
    for metric in metrics:
        say(f"{metric.name} {format_value(trial.metrics[metric.name], metric.unit)}")
    say(f"weights: {job.folder / 'model.pt'}")
    url = record_production(
        None,
        RecordedRun(
            sweep=str(config.provenance.get("sweep", "production")),
            pick_file=path,
            folder=job.folder,
            metrics=metrics,
            trial=trial,
        ),
    )
    say(f"MLflow: {url}")
