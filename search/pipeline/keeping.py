"""From a front to production: pick, export, train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from search import home
from search.errors import InputError, InterruptedRunError
from search.pipeline.screen import StopRequest, console, print_file, print_json, say
from search.pipeline.showing import ledger_of

if TYPE_CHECKING:
    from search.choice.export import PickedConfig
    from search.choice.pick import Pick
    from search.home import Manifest, SweepHome
    from search.results import Trial
    from search.trials.production import ProductionJob


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
    manifest, trials = folder.manifest(), ledger_of(folder).trials
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
    run_id = _mark_pick(name, manifest, chosen, label)
    folder.save_pick(label, {**chosen.to_json(), "mlflow_run": run_id})


def _show_pick(manifest: Manifest, chosen: Pick) -> None:
    from search.units import shown

    point = {name: shown(chosen.trial.params[name]) for name in manifest.dimensions}
    say(f"trial {chosen.trial.number}: {', '.join(f'{k} {v}' for k, v in point.items())}")
    say(chosen.reason)


def _mark_pick(name: str, manifest: Manifest, chosen: Pick, label: str) -> str:
    from search.tracking.runs import mark_pick

    return mark_pick(
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
    chosen, run_id = _picked(folder, trial=trial, label=label)
    text = export_yaml(
        chosen,
        Origin(
            sweep=name,
            sweep_id=manifest.sweep_id,
            objective=manifest.objective,
            command=manifest.command,
            data=manifest.data,
            num_tokens=manifest.num_tokens,
            budget_bytes=manifest.budget_bytes,
            cpus=manifest.cpus,
            versions=manifest.versions,
            metrics=manifest.metrics,
            provenance=manifest.provenance,
            mlflow_run=run_id,
            compression=manifest.compression,
        ),
    )
    if output is None:
        print_file(text)
        return
    home.write_for_user(output, text)
    say(f"wrote {output}; train it: paretune train {output}")


def _picked(folder: SweepHome, *, trial: int | None, label: str) -> tuple[Pick, str]:
    """The pick, and its MLflow run where one is known."""
    from search.choice.pick import repicked

    trials = ledger_of(folder).trials
    if trial is not None:
        return repicked(trials, number=trial, reason="named by --trial"), ""
    kept = folder.load_pick(label)
    chosen = repicked(
        trials, number=kept["trial"], reason=kept["reason"], conditions=kept["conditions"]
    )
    return chosen, kept.get("mlflow_run", "")


def train(path: Path, *, num_tokens: int | None, output: Path | None) -> None:
    """Trains a picked configuration to its end, with checkpoints, and records it."""
    from rich.progress import Progress

    from search.choice.picked import load_pick
    from search.memory.device import device_here
    from search.trials.production import ProductionJob
    from search.trials.production import train as train_job

    picked = load_pick(path)
    config = picked.config
    job = ProductionJob(
        objective=picked.objective,
        params=picked.params,
        num_tokens=num_tokens or config.trial.tokens,
        num_threads=config.resources.cpus,
        device=device_here(),
        folder=output or home.home() / "trained" / path.stem,
        objective_path=config.objective,
        data=config.data,
        origin=_origin(config),
        deployment=picked.deployment,
    )
    stop = StopRequest()
    with Progress(console=console) as progress, stop.on_interrupt():
        task = progress.add_task("tokens", total=job.num_tokens)

        def on_step(tokens_seen: int, loss: float) -> None:
            progress.update(task, completed=tokens_seen, description=f"loss {loss:.4f}")

        trained = train_job(job, on_step=on_step, stop=stop)
    if trained is None:
        again = f"paretune train {path}" + (f" --tokens {num_tokens}" if num_tokens else "")
        msg = f"stopped; go on with: {again}" + (f" --output {output}" if output else "")
        raise InterruptedRunError(msg)
    _record_production(config, path, job, trained)


def _origin(config: PickedConfig) -> dict[str, object]:
    """The trial that a file was exported from, by which its sweep's pick finds the weights."""
    known = {name: config.provenance.get(name) for name in ("sweep_id", "trial")}
    return {} if None in known.values() else known


def _record_production(config: PickedConfig, path: Path, job: ProductionJob, trial: Trial) -> None:
    from search.compression.params import compression_metrics
    from search.compression.trained import COMPRESSED, WEIGHTS
    from search.metric import KNOWN_METRICS
    from search.tracking.production import RecordedRun, record_production
    from search.trials.production_files import MODEL
    from search.units import format_value

    compressed = compression_metrics(job.objective.metrics) if job.deployment else ()
    known = (*job.objective.metrics, *KNOWN_METRICS, *compressed)
    metrics = tuple(metric for metric in known if metric.name in trial.metrics)
    for metric in metrics:
        say(f"{metric.name} {format_value(trial.metrics[metric.name], metric.unit)}")
    say(f"weights: {job.folder / WEIGHTS}")
    if (job.folder / MODEL).is_dir():
        say(f"model: {job.folder / MODEL}")
    if job.deployment:
        say(f"compressed: {job.folder / COMPRESSED}")
    sweep = str(config.provenance.get("sweep", "production"))
    known_here = sweep in home.names()
    url = record_production(
        home.open_home(sweep).manifest().tracking_uri if known_here else None,
        RecordedRun(
            sweep=sweep,
            pick_file=path,
            folder=job.folder,
            metrics=metrics,
            trial=trial,
        ),
    )
    say(f"MLflow: {url}")
