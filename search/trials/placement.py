"""How many trials run at once, and on which cores each of them."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from search.errors import MachineError
from search.units import format_bytes

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.sweep.sweep import Sweep

WORLD_SIZE = "world_size"
SLOTS_VARIABLE = "PARETUNE_SLOTS"
"""Names another folder for the locks on cores. Sweeps that share a machine should share it."""
_SECONDS_FOR_A_SLOT = 60.0
"""How long a new worker waits for cores that a worker on its way out still holds."""
_SECONDS_FOR_OTHERS = 5.0
"""How long a new sweep waits for workers of a killed one, which die within a second."""
_SECONDS_BETWEEN_TRIES = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Places to train in: `num_slots` processes, each with own cores and `budget_bytes`.

    A trial takes one place for each of its processes. `most_trials` may run at once, if that many
    find places; None for no other limit.
    """

    num_slots: int
    budget_bytes: int
    cpus: int
    gpus: int = 0
    most_trials: int | None = None

    @property
    def num_trials(self) -> int:
        """The most trials that run at once."""
        return min(self.num_slots, self.most_trials or self.num_slots)

    def resources(self, world_size: int = 1) -> dict[str, float]:
        """What Ray is asked for, for one trial of so many processes: all on one machine."""
        each = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
        return {name: float(world_size * count) for name, count in each.items()}


def world_size_of(params: Mapping[str, object]) -> int:
    """How many processes train a configuration together: the places it takes."""
    found = params.get(WORLD_SIZE, 1)
    return found if isinstance(found, int) else 1


def largest_world_size(sweep: Sweep) -> int:
    """The most processes that any configuration of a sweep is trained by."""
    if sweep.command is not None:
        return 1
    dimension = sweep.space.root.get(WORLD_SIZE)
    values = (dimension.values() or ()) if dimension else (sweep.fixed.get(WORLD_SIZE, 1),)
    return max(world_size_of({WORLD_SIZE: value}) for value in values)


def slots(sweep: Sweep, device: Device) -> Slots:
    """The places of a sweep on this machine.

    On a CPU as many trials at once as there are cores and memory for; on GPUs one trial each.

    Raises:
        MachineError: when not even one trial can have the cores it asks for. Ray itself would
            wait for ever without a word.
    """
    cpus = sweep.resources.cpus
    num_cores = len(allowed_cores())
    if cpus > num_cores:
        msg = (
            f"resources.cpus: a trial needs {cpus} cores, this process may use {num_cores} "
            f"(set resources.cpus to {num_cores} or less)"
        )
        raise MachineError(msg)
    ranks, concurrent = largest_world_size(sweep), sweep.resources.concurrent
    most = min((concurrent or num_cores) * ranks, num_cores // cpus)
    placed = (_on_gpus if device.kind == "cuda" else _on_cpu)(sweep, device, most)
    if ranks > 1 and concurrent is not None:
        placed = replace(placed, most_trials=concurrent)
    require_places(sweep, placed)
    return placed


def require_places(sweep: Sweep, placed: Slots) -> None:
    """Returns when the widest trial finds places.

    Raises:
        MachineError: when it does not. Ray would wait for ever.
    """
    ranks = largest_world_size(sweep)
    if ranks > placed.num_slots:
        kind = "a GPU" if placed.gpus else format_bytes(placed.budget_bytes)
        cores = "core" if placed.cpus == 1 else "cores"
        msg = (
            f"world_size: {ranks} processes need {ranks} places, each with {kind} and "
            f"{placed.cpus} {cores}; there are {placed.num_slots} (lower world_size, "
            "resources.cpus or memory.budget)"
        )
        raise MachineError(msg)


def _on_gpus(sweep: Sweep, device: Device, most: int) -> Slots:
    import torch

    return Slots(
        num_slots=max(1, min(most, torch.cuda.device_count())),
        budget_bytes=sweep.memory.budget or device.capacity_bytes,
        cpus=sweep.resources.cpus,
        gpus=1,
    )


def _on_cpu(sweep: Sweep, device: Device, most: int) -> Slots:
    available_bytes = _available_bytes(device)
    budget_bytes = sweep.memory.budget or available_bytes // most
    if budget_bytes > available_bytes:
        msg = (
            f"memory.budget: a trial may use {format_bytes(budget_bytes)}, this machine has "
            f"{format_bytes(available_bytes)} free (lower memory.budget, or free some memory)"
        )
        raise MachineError(msg)
    return Slots(
        num_slots=max(1, min(most, available_bytes // budget_bytes)),
        budget_bytes=budget_bytes,
        cpus=sweep.resources.cpus,
    )


def _available_bytes(device: Device) -> int:
    import psutil

    available_bytes: int = psutil.virtual_memory().available
    capacity_bytes: int = device.capacity_bytes
    return min(capacity_bytes, available_bytes)


def free_slots(slots: Slots, *, patience_seconds: float = _SECONDS_FOR_OTHERS) -> Slots:
    """The places whose cores no other sweep on this machine holds, after a short wait for all.

    Raises:
        MachineError: when there is none.
    """
    deadline = time.monotonic() + patience_seconds
    while (num_free := _num_free(slots.cpus)) < slots.num_slots and time.monotonic() < deadline:
        threading.Event().wait(_SECONDS_BETWEEN_TRIES)
    if not num_free:
        raise MachineError(_all_held(slots.cpus, allowed_cores()))
    return replace(slots, num_slots=min(slots.num_slots, num_free))


def _num_free(cpus: int) -> int:
    with ExitStack() as held:
        locks = [_locked(cores) for cores in _groups(allowed_cores(), cpus)]
        free = [held.enter_context(lock) for lock in locks if lock is not None]
        return len(free)


def _all_held(cpus: int, cores: list[int]) -> str:
    return (
        f"other sweeps hold the cores: no {cpus} of {cores} are free "
        "(wait for their end, or give those sweeps a lower resources.concurrent)"
    )


def allowed_cores() -> list[int]:
    """The cores this process may run on, in order."""
    return sorted(os.sched_getaffinity(0))


class CpuSlot:
    """Cores that belong to this process alone, among all that ask through this class.

    The claim is a lock on one file a core, so it ends with the process, however that dies.
    """

    def __init__(self, cores: tuple[int, ...], locks: ExitStack) -> None:
        """Made by `claim`."""
        self.cores = cores
        self._locks = locks

    @classmethod
    def claim(
        cls, *, cpus: int, among: list[int], patience_seconds: float = _SECONDS_FOR_A_SLOT
    ) -> CpuSlot:
        """The first free cores, waiting for some to become free.

        Raises:
            MachineError: when all are still held after `patience_seconds`.
        """
        deadline = time.monotonic() + patience_seconds
        while True:
            for cores in _groups(among, cpus):
                locks = _locked(cores)
                if locks is not None:
                    return cls(cores, locks)
            if time.monotonic() > deadline:
                raise MachineError(_all_held(cpus, among))
            threading.Event().wait(_SECONDS_BETWEEN_TRIES)

    def pin(self) -> None:
        """Moves every thread of this process to its cores, and torch to as many threads."""
        import torch

        for thread in Path("/proc/self/task").iterdir():
            _pin_thread(int(thread.name), self.cores)
        torch.set_num_threads(len(self.cores))

    def release(self) -> None:
        """Gives the cores back."""
        self._locks.close()


def _groups(cores: list[int], size: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(cores) - size + 1, size):
        yield tuple(cores[start : start + size])


def _locked(cores: tuple[int, ...]) -> ExitStack | None:
    stack = ExitStack()
    try:
        for core in cores:
            fcntl.flock(stack.enter_context(_lock_file(core)), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stack.close()
        return None
    return stack


@contextmanager
def _lock_file(core: int) -> Iterator[IO[bytes]]:
    default = Path(tempfile.gettempdir()) / f"paretune-slots-{os.getuid()}"
    folder = Path(os.environ.get(SLOTS_VARIABLE, default))
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / f"core-{core}.lock").open("ab") as file:
        yield file


def _pin_thread(thread: int, cores: tuple[int, ...]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return  # it ended since it was listed
