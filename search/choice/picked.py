"""A picked configuration that can be trained: its file judged together with its objective."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from search.choice.export import PickedConfig, read_pick
from search.compression.params import Deployment
from search.errors import Fault, FileFaultsError, InputError
from search.objective import Objective, load_trainable
from search.results import Params
from search.sweep.command import arguments
from search.sweep.compression import CompressionSettings, deployment
from search.sweep.file import judged_params


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPick:
    """A pick's file without faults: its fields, its objective on its data, all params."""

    config: PickedConfig
    objective: Objective
    params: Params
    deployment: Deployment | None


def load_pick(path: Path) -> LoadedPick:
    """The configuration of a file that `export` wrote and a person may have edited.

    Raises:
        FileFaultsError: with everything that is wrong in it.
        InputError: when it is of a function or a command.
    """
    config = read_pick(path)
    _refuse_untraced(path, config)
    settings = _settings(config)
    objective, params, faults = judged_params(
        objective=config.objective, data=config.data, params=config.params, settings=settings
    )
    faults += [*_unresolved(params), *_untimed(config)]
    if faults or objective is None:
        raise FileFaultsError(str(path), faults)
    quantization = (params.get("quantization"),)
    return LoadedPick(
        config=config,
        objective=objective,
        params=params,
        deployment=deployment(settings, objective, quantization),
    )


def _settings(config: PickedConfig) -> CompressionSettings | None:
    given = config.compression
    return None if given is None else CompressionSettings(**given.model_dump())


def _refuse_untraced(path: Path, config: PickedConfig) -> None:
    """Raises InputError on what trains by itself, with how to run it instead."""
    if config.command:
        run = shlex.join(arguments(config.command, config.params))
        raise InputError(_by_itself(path, "its command", run))
    try:
        found = load_trainable(config.objective)
    except InputError:
        return  # told with the other faults
    if not isinstance(found, type):
        module, _, name = config.objective.partition(":")
        line = f"{name}({dict(config.params)!r}, lambda **figures: print(figures))"
        code = f"from {module} import {name}; {line}"
        quoted = shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'
        run = f"python -c {quoted}"
        raise InputError(_by_itself(path, config.objective, run))


def _by_itself(path: Path, subject: str, run: str) -> str:
    return (
        f"{path}: {subject} trains by itself, without checkpoints of paretune: run it by\n  {run}"
    )


def _untimed(config: PickedConfig) -> Iterator[Fault]:
    if not config.trial.tokens:
        yield Fault(place="trial.tokens", message="must be at least 1, found 0")


def _unresolved(params: Params) -> Iterator[Fault]:
    if params.get("micro_batch_size") == "auto":
        message = "must be a number or equal: only a sweep's memory prediction resolves 'auto'"
        yield Fault(place="params.micro_batch_size", message=message)
