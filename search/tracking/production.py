"""Writes a production run to MLflow, beside the sweep its configuration was picked from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from search.metric import Metric
from search.results import Trial
from search.tracking import entries, pages, store
from search.tracking.entries import RecordedSweep, RunStatus
from search.tracking.runs import log_entries, source_tags

PRODUCTION = "paretune.production"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A finished production run: of which sweep, from which file, with its weights where."""

    sweep: str
    pick_file: Path
    folder: Path
    metrics: tuple[Metric, ...]
    trial: Trial


def record_production(uri: str | None, run: RecordedRun) -> str:
    """Writes one finished run with its params, metrics, curve and pick file; where to see it.

    Raises:
        MachineError: when the store cannot be reached or written.
    """
    found_uri = store.store_uri(uri)
    client = store.open_client(found_uri)
    described = RecordedSweep(
        name=run.sweep, sweep_id="", objectives=run.metrics, metrics=run.metrics, dimensions=()
    )
    with store.store_faults(found_uri):
        experiment_id = store.open_experiment(client, run.sweep)
        created = client.create_run(
            experiment_id,
            start_time=entries.start_time_ms(run.trial),
            tags={
                entries.SWEEP: run.sweep,
                PRODUCTION: str(run.folder),
                **source_tags(),
            },
            run_name=f"production {run.pick_file.stem}",
        )
        run_id = created.info.run_id
        found = entries.metric_entries(run.trial, described)
        log_entries(client, run_id, found, entries.run_params(run.trial))
        client.log_artifact(run_id, str(run.pick_file))
        client.set_terminated(run_id, RunStatus.FINISHED.value, entries.end_time_ms(run.trial))
    return pages.run_url(found_uri, experiment_id, run_id)
