"""The process of one rank but the first: it trains what rank 0 is told to, in step with it.

Run as `python -m search.trials.rank FD`, with a socket to rank 0 under that number. It is told once
what to train, and then one task after another, and answers with its end of each.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import MachineError
from search.results import Outcome, Params, ParamValue, Trial
from search.trials.attempt import Task, attempt
from search.trials.lifelines import end_with

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.objective import Objective

IN_STEP = (Outcome.COMPLETED, Outcome.DIVERGED)
"""Ends that every rank comes to at the same step, so that they may train together again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Which rank of how many a process is, where the first is met, and what they train.

    `cpus` of the `cores` are its own while it lives; where none are named it shares them all.
    """

    rank: int
    world_size: int
    port: int
    objective: str
    data: Mapping[str, Any]
    cpus: int
    cores: tuple[int, ...]
    folder: str
    import_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """A production run that is to be trained along, see `search.trials.production`."""

    params: Params
    num_tokens: int
    num_threads: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """The answer of a rank that finds no cores to train on."""

    reason: str


def main(file_descriptor: int) -> None:
    """Serves rank 0 until it is gone."""
    end_with(os.getppid())
    connection = Connection(file_descriptor)
    try:
        _serve(connection)
    except EOFError:
        return


def _serve(connection: Connection) -> None:
    membership: Membership = connection.recv()
    try:
        objective, device = _prepared(membership)
    except MachineError as error:
        connection.send(Unplaced(reason=str(error)))
        return
    connection.send(None)
    join(device, membership.rank, membership.world_size, membership.port)
    while True:
        trial = _ended(connection.recv(), objective, device)
        connection.send(trial)
        if trial.outcome not in IN_STEP:
            return  # which ends what the others wait for


def _prepared(membership: Membership) -> tuple[Objective, Device]:
    from search.memory.device import device_here
    from search.memory.measurement import prepare_process
    from search.objective import load_objective

    if Path(membership.folder).is_dir():
        os.chdir(membership.folder)
    sys.path.extend(path for path in membership.import_paths if path not in sys.path)
    _take_cores(membership)
    objective = load_objective(membership.objective)(**membership.data)
    prepare_process()
    return objective, device_here()


def _take_cores(membership: Membership) -> None:
    import torch

    from search.trials.placement import CpuSlot

    if membership.cores:
        CpuSlot.claim(cpus=membership.cpus, among=list(membership.cores)).pin()
    else:
        torch.set_num_threads(membership.cpus)


def join(device: Device, rank: int, world_size: int, port: int) -> None:
    """Meets the other ranks, on this machine, and makes a first few exchanges of every kind.

    What torch and the network set up for them then belongs to the process, and to no trial.
    """
    from torch import distributed
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    from search.memory.process import note_what_is_held

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of a host may mean another
    store = TCPStore("127.0.0.1", port, world_size, is_master=False)
    backend = "nccl" if device.kind == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    train_a_little_together(device, world_size)
    note_what_is_held()
    gc.freeze()


def train_a_little_together(device: Device, world_size: int) -> None:
    """Two steps of every kind, so that what they set up once is there before a trial."""
    from search.memory.sample import Sample
    from search.parallel import Sharding
    from search.training import TrainingRun

    for sharding in Sharding:
        params: dict[str, ParamValue] = {
            "batch_size": 2 * world_size,
            "world_size": world_size,
            "sharding": sharding,
        }
        run = TrainingRun(Sample(), params, num_tokens=10**6, device=device.torch_device)
        run.step()
        run.step()


def _ended(task: Task | Production, objective: Objective, device: Device) -> Trial:
    if isinstance(task, Production):
        from search.trials.production import follow

        return follow(task, objective, device)
    running = attempt(task, objective=objective, device=device)
    while True:
        try:
            next(running)
        except StopIteration as end:
            trial: Trial = end.value
            return trial


if __name__ == "__main__":
    # the module of that name, not this one, is what both ends unpickle
    from search.trials.rank import main as serve

    serve(int(sys.argv[1]))
