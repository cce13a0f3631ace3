"""The production run of one picked configuration: checkpoints on the way, weights at the end."""

from __future__ import annotations

import math
import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import nn

from search.checkpointing import without_checkpoints
from search.errors import InputError, MachineError
from search.memory.device import Device
from search.memory.measurement import is_out_of_memory, measure_peak, prepare_process
from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND
from search.objective import Objective, saved
from search.results import Outcome, Params, Trial
from search.training import TrainingRun
from search.trials.placement import allowed_cores
from search.trials.steps import Steps

CHECKPOINT_SECONDS = 60.0
_CHECKPOINT = "checkpoint.pt"
WEIGHTS = "model.pt"
MODEL = "model"
"""The folder of the model in the form that its objective saves it in, where it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionJob:
    """What to train, on how many tokens and CPU threads at most, and where its files go."""

    objective: Objective
    params: Params
    num_tokens: int
    num_threads: int
    device: Device
    folder: Path


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
        MachineError: when memory runs out or the folder cannot be written.
        InputError: when the loss diverges, or the folder holds another run's checkpoint.
    """
    prepare_process()
    torch.set_num_threads(min(job.num_threads, len(allowed_cores())))
    started_at = time.time()
    _make_folder(job.folder)
    try:
        with measure_peak(job.device) as peak:
            run = _new_run(job)
            steps = _train_to_the_end(run, job, on_step=on_step, stop=stop)
            if not run.done:
                return None
            metrics = run.evaluate()
            _write(run.model.state_dict(), job.folder / WEIGHTS)
            _write_model(run.model, job)
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
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{folder}: {error.strerror}, so no folder can be made there (give another: --output)"
        raise MachineError(msg) from error


def _new_run(job: ProductionJob) -> TrainingRun:
    run = TrainingRun(
        job.objective, job.params, num_tokens=job.num_tokens, device=job.device.torch_device
    )
    file = job.folder / _CHECKPOINT
    if file.is_file():
        run.load_state_dict(_checkpoint_of(job, file))
    return run


def _checkpoint_of(job: ProductionJob, file: Path) -> dict[str, Any]:
    """What the checkpoint in the folder goes on from. Raises InputError when it is another's."""
    elsewhere = "(give another folder by --output)"
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
        identity, state = dict(saved["identity"]), dict(saved["run"])
    except (RuntimeError, LookupError, TypeError, EOFError, pickle.UnpicklingError) as error:
        msg = f"{file} is no checkpoint of a production run {elsewhere}"
        raise InputError(msg) from error
    wanted = _identity(job)
    differing = [name for name in wanted if identity.get(name) != wanted[name]]
    if differing:
        msg = f"{file} is of a run with other {' and '.join(differing)} {elsewhere}"
        raise InputError(msg)
    return state


def _identity(job: ProductionJob) -> dict[str, Any]:
    """What a checkpoint must share with the run that goes on from it, in words for a message."""
    kind = type(job.objective)
    return {
        "objective": f"{kind.__module__}:{kind.__qualname__}",
        "data": dict(job.objective.provenance),
        "params": dict(job.params),
        "tokens": job.num_tokens,
    }


def _save(run: TrainingRun, job: ProductionJob) -> None:
    _write({"identity": _identity(job), "run": run.state_dict()}, job.folder / _CHECKPOINT)


def _write(value: object, file: Path) -> None:
    """Writes a file whole or not at all."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        torch.save(value, partial)
        partial.replace(file)
    except (OSError, RuntimeError) as error:  # torch tells a full disk by the latter
        partial.unlink(missing_ok=True)
        msg = f"{file} cannot be written: {error} (free some space, or give another by --output)"
        raise MachineError(msg) from error


def _write_model(model: nn.Module, job: ProductionJob) -> None:
    """Writes a folder whole or not at all."""
    folder = job.folder / MODEL
    partial = folder.with_name(f"{MODEL}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        without_checkpoints(model)
        if saved(job.objective, model, job.params, partial):
            shutil.rmtree(folder, ignore_errors=True)
            partial.replace(folder)
    except OSError as error:
        msg = f"{folder} cannot be written: {error} (free some space, or give another by --output)"
        raise MachineError(msg) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _train_to_the_end(
    run: TrainingRun, job: ProductionJob, *, on_step: Callable[[int, float], None], stop: Event
) -> Steps:
    steps = Steps(tokens_before=run.tokens_seen)
    saved_at = time.monotonic()
    while not run.done and not stop.is_set():
        loss = steps.take(run)
        if not math.isfinite(loss):
            msg = f"the loss became {loss} after {run.tokens_seen} tokens (lower learning_rate)"
            raise InputError(msg)
        on_step(run.tokens_seen, loss)
        if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            _save(run, job)
            saved_at = time.monotonic()
    _save(run, job)
    return steps
