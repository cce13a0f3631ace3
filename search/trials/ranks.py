"""The other ranks of a trial of several processes, as rank 0 sees them: kept warm between trials.

They are processes of this machine that rank 0 starts, each on its own device or cores. Left out:
trials that spread over several machines.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import IO, TYPE_CHECKING, Any, Self

from search.errors import MachineError
from search.metric import PEAK_MEMORY
from search.results import Outcome, Trial
from search.trials.rank import IN_STEP, Membership, Unplaced, join

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

    from search.memory.device import Device
    from search.trials.attempt import Attempt, Task

_SECONDS_TO_TELL = 5.0
"""How long the others may take to say how they ended once rank 0 has broken off."""
_SECONDS_TO_NOTICE = 30.0
"""How long rank 0 may wait for one that has ended before it ends too: NCCL waits for ever."""
_LAST_BYTES = 20_000


class LostRankError(Exception):
    """The process of another rank ended in the middle of a trial; its last words are the text."""


@dataclass(slots=True, kw_only=True)
class _Peer:
    """One of the others: its process, the way to talk to it, what it wrote to its error output."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection
    errors: IO[bytes]

    @classmethod
    def start(cls, rank: int) -> Self:
        ours, theirs = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-W", "ignore", "-m", "search.trials.rank", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=_environment(rank),
            start_new_session=True,  # Ctrl-C is rank 0's alone to hear
        )
        theirs.close()
        return cls(rank=rank, process=process, connection=Connection(ours.detach()), errors=errors)

    def last_words(self) -> str:
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, self.errors.tell() - _LAST_BYTES))
        return self.errors.read().decode(errors="replace").strip()

    def lost(self) -> LostRankError:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_SECONDS_TO_TELL)
        code = self.process.poll()
        how = "stopped to answer" if code is None else f"ended with {code}"
        return LostRankError(f"rank {self.rank} {how}\n{self.last_words()}")

    def told(self, seconds: float | None) -> Any:
        """What it says next. Raises LostRankError when it says nothing more, or not in time."""
        try:
            if not self.connection.poll(seconds):
                raise self.lost()
            return self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self.lost() from error

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.errors.close()


def _environment(rank: int) -> Mapping[str, str]:
    """This process's own, with the paths it imports from, and the GPU of a rank as the only one."""
    paths = os.pathsep.join(path for path in sys.path if path)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = [device for device in visible.split(",") if device]
    own = devices[rank] if rank < len(devices) else str(rank)
    return {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": own}


class Ranks:
    """All ranks but this process, which is rank 0."""

    def __init__(self, world_size: int) -> None:
        """Starts their processes, which get ready by themselves."""
        self.world_size = world_size
        self.in_step = True
        self._store: TCPStore | None = None
        self._peers = [_Peer.start(rank) for rank in range(1, world_size)]

    def join(self, membership: Callable[[int, int], Membership], device: Device) -> None:
        """Trains together from now on.

        Args:
            membership: what a rank is told, by its number and the port where this one is met.
            device: of this process.

        Raises:
            MachineError: when a rank finds no place.
            LostRankError: when one ends.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

        self._store = TCPStore(
            "127.0.0.1", 0, self.world_size, is_master=True, wait_for_workers=False
        )
        port: int = self._store.port
        for peer in self._peers:
            peer.connection.send(membership(peer.rank, port))
        for peer in self._peers:
            answer = peer.told(None)
            if isinstance(answer, Unplaced):
                raise MachineError(answer.reason)
        join(device, 0, self.world_size, port)

    def attempt(self, task: Task, attempt: Callable[[Task], Attempt]) -> Attempt:
        """The attempt of all ranks: this one's own, and what the others say of theirs at its end.

        Raises:
            LostRankError: when one of them ended without a word.
        """
        self.tell(replace(task, time_limit_seconds=None, objectives=()))
        with self.watched():
            trial = yield from attempt(task)
            ends = self.ends(trial)
            self.in_step = all(end.outcome in IN_STEP for end in ends)
            return of_all_ranks(trial, ends)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Round what the ranks do together: `in_step` says at its end whether all came through.

        Where they did not, they are closed.
        """
        over = threading.Event()
        threading.Thread(target=self._end_with_peers, args=(over,), daemon=True).start()
        self.in_step = False
        try:
            yield
        finally:
            over.set()
            if not self.in_step:
                self.close()

    def tell(self, what: object) -> None:
        """Hands the same to each of the others."""
        for peer in self._peers:
            with suppress(OSError):  # one that is gone is found out when it is to answer
                peer.connection.send(what)

    def ends(self, trial: Trial | None) -> list[Trial]:
        """How the others ended what this process has ended so; None where it broke off."""
        broken = trial is None or trial.outcome not in IN_STEP
        ends = []
        for peer in self._peers:
            if broken and not peer.connection.poll(_SECONDS_TO_TELL):
                continue  # it waits for this rank: there is nothing it could tell
            ends.append(peer.told(None))
        return ends

    def _end_with_peers(self, over: threading.Event) -> None:
        """Ends this process when another rank has, and this one does not come to notice."""
        alive = [os.pidfd_open(peer.process.pid) for peer in self._peers]
        try:
            while not over.is_set():
                if wait(alive, timeout=1.0) and not over.wait(_SECONDS_TO_NOTICE):
                    gone = [peer for peer in self._peers if peer.process.poll() is not None]
                    for peer in gone:
                        sys.stderr.write(f"{peer.lost()}\n")
                    sys.stderr.flush()
                    os._exit(1)
        finally:
            for file in alive:
                os.close(file)

    def close(self) -> None:
        """Ends the others at once."""
        for peer in self._peers:
            peer.close()
        self._peers = []


def of_all_ranks(trial: Trial, ends: Sequence[Trial]) -> Trial:
    """The trial of rank 0 as that of all: the largest peak, and the reason of whoever had one."""
    peaks = [int(end.metrics.get(PEAK_MEMORY.name, 0)) for end in (trial, *ends)]
    whole = replace(
        trial,
        metrics={**trial.metrics, PEAK_MEMORY.name: float(max(peaks))},
        details={**trial.details, "peak_bytes_by_rank": ",".join(map(str, peaks))},
    )
    exhausted = [end for end in ends if end.outcome is Outcome.OUT_OF_MEMORY]
    if exhausted and trial.outcome is not Outcome.OUT_OF_MEMORY:
        return replace(whole, outcome=Outcome.OUT_OF_MEMORY, message=_of_rank(ends, exhausted[0]))
    if trial.outcome is Outcome.FAILED and ends:
        failed = [end for end in ends if end.outcome is Outcome.FAILED]
        others = "\n".join(_of_rank(ends, end) for end in failed)
        return replace(whole, message=f"rank 0: {trial.message}\n{others}".strip())
    return whole


def _of_rank(ends: Sequence[Trial], end: Trial) -> str:
    return f"rank {1 + ends.index(end)}: {end.message}"
