"""From a sweep file to its trials: sweep and resume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search import home
from search.errors import InputError, InterruptedRunError, SearchError
from search.pipeline.efficiency import derived_of
from search.pipeline.learning import UntracedStage
from search.pipeline.running import predict_ahead
from search.pipeline.screen import StopRequest, console, say
from search.pipeline.showing import show_results, standing_of
from search.pipeline.staging import Stage, prepare

if TYPE_CHECKING:
    from search.home import Manifest, SweepHome
    from search.memory.residuals import Setting
    from search.memory.speed import Rates
    from search.results import Trial
    from search.sweep.compression import CompressionSettings
    from search.tracking.entries import RunStatus
    from search.tracking.record import Recorder
    from search.trials.events import Event
    from search.trials.ledger import Ledger


def sweep(path: Path, *, address: str | None) -> None:
    """Runs a new sweep. Raises InterruptedRunError when it was stopped before its end."""
    from search.tracking.store import store_uri
    from search.trials.ledger import Ledger
    from search.trials.placement import free_slots

    stage = prepare(path)
    name = stage.loaded.sweep.name
    home.refuse_existing(name)
    manifest = _manifest(stage, tracking_uri=store_uri())
    predict_ahead(stage)
    free_slots(stage.slots)
    ledger = Ledger(home.home() / name)
    with ledger.claim():
        folder = home.create_home(name, sweep_text=stage.loaded.text, manifest=manifest)
        try:
            recorder = _open_recorder(stage, manifest)
        except SearchError:
            folder.discard()
            raise
        with _closing(recorder, name):
            _run(stage, folder, ledger, recorder, address=address)


def resume(name: str, *, address: str | None) -> None:
    """Goes on with a sweep. Raises InterruptedRunError when it was stopped again."""
    from search.trials.ledger import Ledger

    folder = home.open_home(name)
    manifest, ledger = folder.manifest(), Ledger(folder.folder)
    with ledger.claim():
        stage = prepare(folder.sweep_file, budget_bytes=manifest.budget_bytes)
        _refuse_other_data(name, manifest, stage.loaded.provenance)
        with _closing(_open_recorder(stage, manifest), name) as recorder:
            state = ledger.read()
            if standing_of(folder, state, running=False).state == "finished":
                recorder.finish(state.trials, state.refused)
                say(f"{name} is finished: nothing is left to run")
            else:
                _run(stage, folder, ledger, recorder, address=address)


def _refuse_other_data(name: str, manifest: Manifest, here: Mapping[str, str | int]) -> None:
    """Raises InputError when the data are no longer those the first trials were judged on."""
    changed = [what for what, value in here.items() if manifest.provenance.get(what) != value]
    if changed:
        msg = (
            f"{name}: its data changed since it started ({', '.join(changed)}), so its trials "
            "could not be compared (restore the data, or start a sweep of another name)"
        )
        raise InputError(msg)


def _manifest(stage: Stage | UntracedStage, *, tracking_uri: str) -> Manifest:
    from search.home import Manifest

    sweep = stage.loaded.sweep
    metrics = {metric.name: metric for metric in stage.loaded.metrics}
    return Manifest(
        sweep_id=home.new_sweep_id(),
        created_at=home.now(),
        tracking_uri=tracking_uri,
        objective=sweep.objective or "",
        command=sweep.command or "",
        data=sweep.data,
        dimensions=tuple(sweep.space),
        objectives=tuple(metrics[name] for name in sweep.objectives),
        metrics=tuple(metrics.values()),
        num_trials=sweep.trials,
        num_tokens=sweep.trial.tokens or 0,
        budget_bytes=stage.slots.budget_bytes,
        cpus=stage.slots.cpus,
        versions=home.installed_versions(),
        provenance={**stage.loaded.provenance, "device": stage.device.name},
        compression=_exported(sweep.compression),
    )


def _exported(settings: CompressionSettings | None) -> dict[str, Any]:
    """What a pick must say of compression beside its params."""
    if settings is None:
        return {}
    return settings.model_dump(include={"serving_batch_size", "teacher"}, exclude_none=True)


def _open_recorder(stage: Stage | UntracedStage, manifest: Manifest) -> Recorder:
    from search.tracking.entries import RecordedSweep
    from search.tracking.record import Recorder

    sweep = stage.loaded.sweep
    return Recorder.open(
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
            provenance={
                **manifest.provenance,
                **{f"version.{name}": text for name, text in manifest.versions.items()},
            },
        ),
    )


@contextmanager
def _closing(recorder: Recorder, name: str) -> Iterator[Recorder]:
    try:
        yield recorder
    finally:
        unwritten = recorder.close()
        if unwritten is not None:
            say(f"{unwritten}; 'paretune sweep --resume {name}' writes it again")


def _run(
    stage: Stage | UntracedStage,
    folder: SweepHome,
    ledger: Ledger,
    recorder: Recorder,
    *,
    address: str | None,
) -> None:
    from search.progress import SweepProgress
    from search.tracking.entries import RunStatus
    from search.trials.run import run_sweep

    before = ledger.read()
    progress = SweepProgress(
        console,
        num_trials=stage.loaded.sweep.trials,
        metrics=folder.manifest().objectives,
        dimensions=folder.manifest().dimensions,
    )
    progress.seed(before.trials, before.refused)
    order = None
    if isinstance(stage, UntracedStage):
        stage.learn(before.trials)
        order = stage.fits.order
        if known := stage.known():
            say(known)
    else:
        say(stage.margins.explain())

    def heard(event: Event) -> None:
        progress(event)
        recorder.record_event(event)
        _learn(stage, folder.name, event)

    status = RunStatus.FAILED
    stop = StopRequest(folder.stop_request)
    try:
        with progress, stop.on_interrupt():
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
                order=order,
                deployment=stage.loaded.deployment,
                derived=derived_of(stage),
            )
        status = RunStatus.FINISHED
        if isinstance(stage, Stage):
            learn_speeds(stage, folder.name, ledger.read().trials)
            say(stage.margins.explain())
    finally:
        status = RunStatus.KILLED if stop.is_set() else status
        _report(folder, ledger, recorder, status)
    if stop.is_set() and not _finished(folder, ledger):
        msg = "stopped"
        raise InterruptedRunError(msg)


def _learn(stage: Stage | UntracedStage, name: str, event: Event) -> None:
    """Lets the margins of this device follow from the trials that reached their peak or ran out."""
    from search.memory.residuals import Residual
    from search.metric import PEAK_MEMORY
    from search.results import Outcome
    from search.trials.events import TrialFinished

    if not isinstance(event, TrialFinished):
        return
    if isinstance(stage, UntracedStage):
        stage.learn([event.trial])
        return
    if event.trial.predicted is None:
        return
    trial, ran_out = event.trial, event.trial.outcome is Outcome.OUT_OF_MEMORY
    peak = trial.metrics.get(PEAK_MEMORY.name)
    if not ran_out and (trial.outcome is not Outcome.COMPLETED or peak is None):
        return
    residual = Residual(
        predicted_bytes=event.trial.predicted.expected_bytes,
        measured_bytes=stage.slots.budget_bytes if ran_out or peak is None else round(peak),
        censored=ran_out,
    )
    stage.margins.learn(residual, trial=f"{name}/{trial.number}")


def learn_speeds(stage: Stage, name: str, trials: Iterable[Trial]) -> None:
    """Keeps the completed trials' speeds beside their estimates, for later plans of this device.

    Once all trials have ended: rates measured beside a trial would be too low, and its speed too.
    What would have to be traced again to be estimated is left out.
    """
    from search.memory.rates import Basis, rates_by
    from search.memory.speed_records import recorded_speeds, speed_setting
    from search.metric import TOKENS_PER_SECOND
    from search.results import Outcome

    completed = {
        f"{name}/{trial.number}": trial
        for trial in trials
        if trial.outcome is Outcome.COMPLETED and TOKENS_PER_SECOND.name in trial.metrics
    }
    for basis in Basis:
        setting = speed_setting(stage.device, basis=basis, cpus=stage.slots.cpus)
        known = recorded_speeds(setting)
        new = {key: trial for key, trial in completed.items() if key not in known}
        rates = rates_by(basis, stage.device) if new else None
        if rates is not None:
            _keep_speeds(stage, setting, rates, new)


def _keep_speeds(stage: Stage, setting: Setting, rates: Rates, trials: Mapping[str, Trial]) -> None:
    from search.memory.speed_records import MeasuredSpeed, record_speed
    from search.metric import TOKENS_PER_SECOND

    for key, trial in trials.items():
        estimated = stage.predict.known_speed(trial.params, rates)
        if estimated is None:
            continue
        speed = MeasuredSpeed(
            measured_tokens_per_second=trial.metrics[TOKENS_PER_SECOND.name],
            estimated_tokens_per_second=estimated.expected_tokens_per_second,
        )
        with suppress(OSError):  # where nothing can be kept, later plans start without it
            record_speed(setting, speed, trial=key)


def _report(folder: SweepHome, ledger: Ledger, recorder: Recorder, status: RunStatus) -> None:
    state = ledger.read()
    show_results(folder, state, recorder.url)
    recorder.finish(state.trials, state.refused, status)


def _finished(folder: SweepHome, ledger: Ledger) -> bool:
    return standing_of(folder, ledger.read(), running=False).state == "finished"
