"""What a production run writes into its folder: each file whole or not at all."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from search.checkpointing import without_checkpoints
from search.compression.params import CompressionParams, teacher_of
from search.compression.trained import WEIGHTS, Trained, path_of, sha256
from search.errors import InputError, MachineError
from search.objective import saved
from search.parallel import Sharding

if TYPE_CHECKING:
    from search.training import TrainingRun
    from search.trials.production import ProductionJob

MODEL = "model"
"""The folder of the model in the form that its objective saves it in, where it has one."""
_CHECKPOINT = "checkpoint.pt"


def make_folder(folder: Path) -> None:
    """Makes the folder of a run. Raises MachineError when it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{folder}: {error.strerror}, so no folder can be made there (give another: --output)"
        raise MachineError(msg) from error


def load_checkpoint(run: TrainingRun, job: ProductionJob) -> None:
    """Goes on from the checkpoint in the folder, where there is one.

    Raises:
        InputError: when it is another run's.
    """
    file = job.folder / _CHECKPOINT
    if file.is_file():
        run.load_state_dict(_checkpoint_of(job, file))


def _checkpoint_of(job: ProductionJob, file: Path) -> dict[str, Any]:
    """What a run goes on from."""
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
    """What a checkpoint must share with the run that goes on from it, in words for a message.

    Not how it is compressed: that comes after training.
    """
    later = {each.name for each in fields(CompressionParams)}
    teacher = teacher_of(job.deployment)
    return {
        "objective": path_of(job.objective),
        "data": dict(job.objective.provenance),
        "params": {name: value for name, value in job.params.items() if name not in later},
        "tokens": job.num_tokens,
        **({"teacher": teacher.name} if teacher else {}),
    }


def save_checkpoint(run: TrainingRun, job: ProductionJob) -> None:
    """Writes what the run goes on from if it is stopped now. Every rank calls it, one writes."""
    state = run.state_dict()
    if run.is_first:
        _write({"identity": _identity(job), "run": state}, job.folder / _CHECKPOINT)


def _write(value: object, file: Path) -> None:
    with written_whole(file) as partial:
        torch.save(value, partial)


@contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """Where to write a file, so that it is there whole or not at all."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        yield partial
        partial.replace(file)
    except (OSError, RuntimeError) as error:  # torch tells a full disk by the latter
        partial.unlink(missing_ok=True)
        msg = f"{file} cannot be written: {error} (free some space, or give another by --output)"
        raise MachineError(msg) from error


def write_trained(run: TrainingRun, weights: dict[str, Tensor], job: ProductionJob) -> None:
    """Writes the weights, and the model in its objective's own form, where that has one."""
    _write(weights, job.folder / WEIGHTS)
    _write_model(_whole_model(run, weights), job)


def _whole_model(run: TrainingRun, weights: dict[str, Tensor]) -> nn.Module:
    """The model of a run; a new one on the host where the ranks keep it in shares."""
    if run.training.sharding is Sharding.NONE:
        return run.model
    model = run.objective.model(run.params)
    model.load_state_dict(weights)
    return model


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


def describe(job: ProductionJob) -> None:
    """Says beside the weights what they are."""
    Trained(
        objective=path_of(job.objective),
        data=job.data,
        provenance=job.objective.provenance,
        params=job.params,
        num_tokens=job.num_tokens,
        weights_sha256=sha256(job.folder / WEIGHTS),
        compressed=job.deployment is not None,
        origin=job.origin,
    ).write(job.folder)
