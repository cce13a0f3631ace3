"""The MLflow runs of one sweep: found by their tags, written so that twice changes nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import MachineError
from search.results import Trial
from search.tracking import entries, store, views
from search.tracking.entries import MetricEntry, RecordedSweep, RunStatus
from search.tracking.pages import run_link
from search.tracking.summary import Summary, front_numbers, summary_metrics, summary_note

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_METRICS_A_BATCH = 900
"""Metrics of one request, beside 100 params. Source: MLflow 3.17, utils/validation.py: 1000."""


@dataclass(slots=True, kw_only=True)
class _Child:
    run_id: str
    ended: bool
    on_front: str = "false"


class SweepRuns:
    """The parent run of a sweep and its children by trial number. All may raise MLflow's errors."""

    def __init__(self, client: MlflowClient, sweep: RecordedSweep, *, experiment_id: str) -> None:
        """Finds the sweep's runs in the store, and opens its parent run."""
        self.client = client
        self.sweep = sweep
        self.experiment_id = experiment_id
        self._children: dict[int, _Child] = {}
        self._doubtful: set[int] = set()
        self.parent_run_id = self._open_parent(self._find_children())

    def run_ids(self) -> dict[int, str]:
        """The run of each trial that has one."""
        return {number: child.run_id for number, child in self._children.items()}

    def write(self, trial: Trial) -> None:
        """Writes a trial into its one run, unless it is there already."""
        child = self._children.get(trial.number) or self._create(trial)
        if child.ended:
            return
        log_entries(
            self.client,
            child.run_id,
            entries.metric_entries(trial, self.sweep),
            entries.run_params(trial),
        )
        self.client.set_terminated(
            child.run_id, entries.run_status(trial.outcome).value, entries.end_time_ms(trial)
        )
        child.ended = True

    def mark_front(self, trials: Sequence[Trial]) -> None:
        """Tags each child with whether it is on the front of these trials, where that changed."""
        on_front = front_numbers(trials, self.sweep.objectives)
        for number, child in list(self._children.items()):
            mark = entries.param_text(number in on_front)
            if mark != child.on_front:
                self.client.set_tag(child.run_id, entries.ON_FRONT, mark)
                child.on_front = mark

    def kill_unknown(self, launched: Collection[int]) -> None:
        """Ends as KILLED what still seems to run and is none of these trials."""
        for number, child in self._children.items():
            if number not in launched and not child.ended:
                self.client.set_terminated(child.run_id, RunStatus.KILLED.value)
                child.ended = True

    def summarize(self, summary: Summary) -> None:
        """Writes counts, hypervolume and the story on the parent run."""
        now = _now_ms()
        found = [
            MetricEntry(key=key, value=value, timestamp_ms=now)
            for key, value in summary_metrics(summary).items()
        ]
        log_entries(self.client, self.parent_run_id, found, {})
        note = summary_note(summary, run_ids=self.run_ids(), experiment_id=self.experiment_id)
        self.client.set_tag(self.parent_run_id, entries.NOTE, note)

    def log_artifacts(self, summary: Summary) -> None:
        """Writes charts and tables on the parent run."""
        from search.tracking.artifacts import write_artifacts

        with tempfile.TemporaryDirectory() as folder:
            tables = write_artifacts(summary, Path(folder), run_ids=self.run_ids())
            self.client.log_artifacts(self.parent_run_id, folder)
        self.client.set_tag(self.parent_run_id, "mlflow.loggedArtifacts", tables)

    def end_parent(self, status: RunStatus) -> None:
        """Ends the sweep's own run."""
        self.client.set_terminated(self.parent_run_id, status.value)

    def _find_children(self) -> str | None:
        """Remembers the children in the store; gives the parent run's id, if there is one."""
        parent = None
        for run in _search(self.client, self.experiment_id, self.sweep.sweep_id):
            number = run.data.tags.get(entries.TRIAL)
            if number is None:
                parent = run.info.run_id
            else:
                self._adopt(int(number), run)
        return parent

    def _adopt(self, number: int, run: Run) -> None:
        """Takes a run as that of a trial; of two, left by a lost answer, the ended one."""
        found = _Child(
            run_id=run.info.run_id,
            ended=run.info.status != RunStatus.RUNNING.value,
            on_front=run.data.tags.get(entries.ON_FRONT, "false"),
        )
        known = self._children.get(number)
        if known is None:
            self._children[number] = found
        elif known.run_id != found.run_id:
            kept, dropped = (found, known) if found.ended and not known.ended else (known, found)
            self._children[number] = kept
            self.client.delete_run(dropped.run_id)

    def _create(self, trial: Trial) -> _Child:
        if trial.number in self._doubtful:  # an earlier request may have arrived without its answer
            self._find_children()
            if trial.number in self._children:
                return self._children[trial.number]
        self._doubtful.add(trial.number)
        tags = entries.run_tags(trial, self.sweep, parent_run_id=self.parent_run_id)
        run = self.client.create_run(
            self.experiment_id,
            start_time=entries.start_time_ms(trial),
            tags=tags | source_tags(),
            run_name=entries.run_name(trial),
        )
        self._children[trial.number] = _Child(run_id=run.info.run_id, ended=False)
        return self._children[trial.number]

    def _open_parent(self, found: str | None) -> str:
        sweep = self.sweep
        tags = entries.sweep_tags(sweep) | source_tags()
        tags |= {entries.NOTE: sweep.description or f"Sweep `{sweep.name}`, still running."}
        for name, value in sweep.provenance.items():
            tags[f"paretune.provenance.{name}"] = entries.param_text(value)
        if found is None:
            run = self.client.create_run(self.experiment_id, tags=tags, run_name=sweep.name)
            found = str(run.info.run_id)
        else:
            self.client.update_run(found, RunStatus.RUNNING.value)
        self.client.log_text(found, sweep.text, "sweep.yaml")
        self._tag_experiment(found)
        return found

    def _tag_experiment(self, parent_run_id: str) -> None:
        tags = views.experiment_tags(
            self.sweep,
            self.client.get_experiment(self.experiment_id).tags,
            parent_link=run_link(self.experiment_id, parent_run_id),
            now_ms=_now_ms(),
        )
        for key, value in tags.items():
            self.client.set_experiment_tag(self.experiment_id, key, value)


def log_entries(
    client: MlflowClient, run_id: str, found: Sequence[MetricEntry], params: Mapping[str, str]
) -> None:
    """Writes params and metrics in one request, or more where a curve is longer than one may be."""
    from mlflow.entities import Metric, Param

    metrics = [Metric(entry.key, entry.value, entry.timestamp_ms, entry.step) for entry in found]
    texts = [Param(key, value) for key, value in params.items()]
    for start in range(0, max(1, len(metrics)), _METRICS_A_BATCH):
        batch = metrics[start : start + _METRICS_A_BATCH]
        client.log_batch(run_id, batch, texts if start == 0 else [])


def mark_pick(uri: str | None, *, sweep_name: str, sweep_id: str, number: int, label: str) -> str:
    """Tags the run of a trial as a sweep's pick under a label, no other run of it; its run id.

    Raises:
        MachineError: when the store cannot be reached, or holds no such run.
    """
    found_uri = store.store_uri(uri)
    client = store.open_client(found_uri)
    with store.store_faults(found_uri):
        experiment_id = store.open_experiment(client, sweep_name)
        return _move_label(client, experiment_id, sweep_id, number=number, label=label)


def _move_label(
    client: MlflowClient, experiment_id: str, sweep_id: str, *, number: int, label: str
) -> str:
    picked = ""
    for run in _search(client, experiment_id, sweep_id):
        before = [text for text in run.data.tags.get(entries.PICK, "").split(",") if text]
        after = [text for text in before if text != label]
        if run.data.tags.get(entries.TRIAL) == str(number):
            picked = run.info.run_id
            after.append(label)
        if after != before:
            client.set_tag(run.info.run_id, entries.PICK, ",".join(after))
    if not picked:
        msg = (
            f"MLflow holds no run of trial {number} (paretune sweep --resume writes what it lacks)"
        )
        raise MachineError(msg)
    return picked


def _search(client: MlflowClient, experiment_id: str, sweep_id: str) -> Iterator[Run]:
    token: Any = None
    while True:
        query = f"tags.`{entries.SWEEP_ID}` = '{sweep_id}'"
        page = client.search_runs([experiment_id], query, max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def source_tags() -> dict[str, str]:
    """Who and what wrote a run: the tags that MLflow's own client does not set."""
    return {
        "mlflow.user": store.user_name(),
        "mlflow.source.name": "paretune",
        "mlflow.source.type": "LOCAL",
    }


def _now_ms() -> int:
    return round(time.time() * 1000)
