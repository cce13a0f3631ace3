"""The production run of one picked configuration: checkpoints on the way, weights at the end.

What it writes: `search.trials.production_files`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import distributed

from search.compression import quantization
from search.compression.params import MODEL_SIZE, Deployment, teacher_of
from search.compression.stored import save_model
from search.compression.trained import COMPRESSED
from search.errors import InputError, MachineError
from search.memory.device import Device
from search.memory.measurement import is_out_of_memory, measure_peak, prepare_process
from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND
from search.objective import Objective
from search.results import Outcome, Params, ParamValue, Trial
from search.training import TrainingRun
from search.trials.deployed import Deployed, compress_run, measure_deployed
from search.trials.placement import allowed_cores, world_size_of
from search.trials.production_files import (
    describe,
    load_checkpoint,
    make_folder,
    save_checkpoint,
    write_trained,
    written_whole,
)
from search.trials.rank import Membership, Production
from search.trials.ranks import LostRankError, Ranks, of_all_ranks
from search.trials.steps import Steps

CHECKPOINT_SECONDS = 60.0
_GO_ON, _SAVE, _STOP = range(3)
"""What to do before the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionJob:
    """What to train, on how many tokens and CPU threads at most, and where its files go.

    Several processes each load the objective, by `objective_path` on `data`, its settings. `origin`
    names the trial it was picked from. With a `deployment` the model is compressed in the end.
    """

    objective: Objective
    params: Params
    num_tokens: int
    num_threads: int
    device: Device
    folder: Path
    objective_path: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    deployment: Deployment | None = None


def train(
    job: ProductionJob, *, on_step: Callable[[int, float], None], stop: Event
) -> Trial | None:
    """The finished run as a trial; None when stopped, with a checkpoint to go on from.

    Goes on from the checkpoint in the folder when there is one of the same configuration.

    Args:
        job: what to train.
        on_step: told the tokens seen and the loss after each optimizer step.
        stop: set it and the run stops after the step it is in.

    Raises:
        MachineError: when memory runs out, another of its processes ends, or the folder cannot be
            written.
        InputError: when the loss diverges, or the folder holds another run's checkpoint.
    """
    make_folder(job.folder)
    if job.deployment is not None and job.deployment.quantizes:
        quantization.prepare()
    prepare_process()
    torch.set_num_threads(min(job.num_threads, len(allowed_cores())))
    if world_size_of(job.params) > 1:
        return _trained_together(job, on_step=on_step, stop=stop)
    return _trained(job, on_step=on_step, stop=stop)


def _trained(
    job: ProductionJob, *, on_step: Callable[[int, float], None], stop: Event
) -> Trial | None:
    """The same, as the only process, or as one of several that all do this."""
    started_at = time.time()
    details: dict[str, ParamValue] = {}
    try:
        with measure_peak(job.device) as peak:
            run = _new_run(job)
            steps = _train_to_the_end(run, job, on_step=on_step, stop=stop)
            if not run.done:
                return None
            metrics, weights = run.evaluate(), run.weights()
            if run.is_first:
                write_trained(run, weights, job)
        del weights
        if job.deployment is not None:
            deployed = _deployed(run, job, job.deployment)
            metrics.update(deployed.metrics)
            details.update(deployed.details)
        if run.is_first:
            describe(job)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        msg = f"the run does not fit into this device's memory: {error}"
        raise MachineError(msg) from error
    metrics[PEAK_MEMORY.name] = float(peak.num_bytes)
    if steps.tokens:
        metrics[TOKENS_PER_SECOND.name] = steps.tokens_per_second
    return Trial(
        number=0,
        params=job.params,
        outcome=Outcome.COMPLETED,
        metrics=metrics,
        started_at=started_at,
        duration_seconds=time.time() - started_at,
        curve=steps.curve(),
        details=details,
    )


def _deployed(run: TrainingRun, job: ProductionJob, deployment: Deployment) -> Deployed:
    """The compressed model in its file, and what was measured of it."""
    file = job.folder / COMPRESSED
    done = compress_run(run)
    with written_whole(file) as partial:
        size_bytes = save_model(run.model, partial)
    del run.model
    with measure_peak(job.device) as peak:
        found = measure_deployed(run, file, peak=peak, num_samples=deployment.serving_batch_size)
    return Deployed(
        metrics={**found.metrics, MODEL_SIZE.name: float(size_bytes)},
        details={**found.details, **done},
    )


def _trained_together(
    job: ProductionJob, *, on_step: Callable[[int, float], None], stop: Event
) -> Trial | None:
    """The same as the first of several processes, which it starts and ends."""
    ranks = Ranks(world_size_of(job.params))
    try:
        ranks.join(partial(_membership, job), job.device)
        ranks.tell(
            Production(
                params=job.params,
                num_tokens=job.num_tokens,
                num_threads=job.num_threads,
                folder=job.folder.absolute(),
            )
        )
        with ranks.watched():
            return _of_all(ranks, partial(_trained, job, on_step=on_step, stop=stop))
    except LostRankError as lost:
        msg = f"another process of the run ended: {lost} (run it again to go on)"
        raise MachineError(msg) from lost
    finally:
        ranks.close()
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _of_all(ranks: Ranks, train_own: Callable[[], Trial | None]) -> Trial | None:
    try:
        trained = train_own()
    except RuntimeError as error:  # most likely what is left when another rank breaks off
        reasons = [end.message for end in ranks.ends(None) if end.message]
        if not reasons:
            raise
        raise MachineError("\n".join(reasons)) from error
    ends = ranks.ends(trained)
    return trained and of_all_ranks(trained, ends)


def _membership(job: ProductionJob, rank: int, port: int) -> Membership:
    return Membership(
        rank=rank,
        world_size=world_size_of(job.params),
        port=port,
        objective=job.objective_path,
        data=job.data,
        cpus=job.num_threads,
        cores=(),
        folder=str(Path.cwd()),
        import_paths=tuple(sys.path),
    )


def follow(asked: Production, objective: Objective, device: Device) -> Trial:
    """What another rank does while rank 0 trains: the same, and nothing of it is written or told.

    Nothing is raised: rank 0 hears why.
    """
    job = ProductionJob(
        objective=objective,
        params=asked.params,
        num_tokens=asked.num_tokens,
        num_threads=asked.num_threads,
        device=device,
        folder=asked.folder,
    )
    stopped = Trial(number=0, params=asked.params, outcome=Outcome.COMPLETED)
    try:
        return _trained(job, on_step=lambda *_: None, stop=Event()) or stopped
    except Exception as error:  # noqa: BLE001 - see above
        return replace(stopped, outcome=Outcome.FAILED, message=f"{type(error).__name__}: {error}")


def _new_run(job: ProductionJob) -> TrainingRun:
    run = TrainingRun(
        job.objective,
        job.params,
        num_tokens=job.num_tokens,
        device=job.device.torch_device,
        teacher=teacher_of(job.deployment),
    )
    load_checkpoint(run, job)
    return run


def _train_to_the_end(
    run: TrainingRun, job: ProductionJob, *, on_step: Callable[[int, float], None], stop: Event
) -> Steps:
    steps = Steps(tokens_before=run.tokens_seen)
    saved_at = time.monotonic()
    while not run.done:
        order = run.agreed(_order(stop, saved_at))
        if order == _STOP:
            break
        if order == _SAVE:
            save_checkpoint(run, job)
            saved_at = time.monotonic()
        loss = steps.take(run)
        if not math.isfinite(loss):
            msg = f"the loss became {loss} after {run.tokens_seen} tokens (lower learning_rate)"
            raise InputError(msg)
        on_step(run.tokens_seen, loss)
    save_checkpoint(run, job)
    return steps


def _order(stop: Event, saved_at: float) -> int:
    if stop.is_set():
        return _STOP
    return _SAVE if time.monotonic() - saved_at > CHECKPOINT_SECONDS else _GO_ON
