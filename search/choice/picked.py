"""A picked configuration that can be trained: its file judged together with its objective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from search.choice.export import PickedConfig, read_pick
from search.errors import Fault, FileFaultsError
from search.objective import Objective
from search.results import Params
from search.sweep.file import judged_params


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPick:
    """A pick's file without faults: its fields, its objective on its data, all params."""

    config: PickedConfig
    objective: Objective
    params: Params


def load_pick(path: Path) -> LoadedPick:
    """The configuration of a file that `export` wrote and a person may have edited.

    Raises:
        FileFaultsError: with everything that is wrong in it.
    """
    config = read_pick(path)
    objective, params, faults = judged_params(
        objective=config.objective, data=config.data, params=config.params
    )
    faults += _unresolved(params)
    if faults or objective is None:
        raise FileFaultsError(str(path), faults)
    return LoadedPick(config=config, objective=objective, params=params)


def _unresolved(params: Params) -> Iterator[Fault]:
    if params.get("micro_batch_size") == "auto":
        message = "must be a number or equal: only a sweep's memory prediction resolves 'auto'"
        yield Fault(place="params.micro_batch_size", message=message)
