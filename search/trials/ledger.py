"""What has been tried, on disk before a trial starts and after it ends. The only source for resume.

A file of one JSON record a line. A record counts once its newline is on the disk; what a crash left
after the last newline never happened.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from search.errors import MachineError
from search.results import Params, ParamValue, PredictedMemory, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A launched configuration: the point drawn from the space, and all its params.

    `details` are known before it runs, such as that it was changed to fit; its trial has them too.
    """

    number: int
    point: Params
    params: Params
    predicted: PredictedMemory | None
    details: Mapping[str, ParamValue] = field(default_factory=dict)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Started:
        """What `asdict` made of it."""
        predicted = record["predicted"]
        return cls(**{**record, "predicted": PredictedMemory(**predicted) if predicted else None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A configuration that was not launched, and the point it was drawn as."""

    point: Params
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What a ledger tells: finished and refused trials, and what was launched, by number.

    `launched` holds every configuration that was ever started, finished or not. `exhausted` says
    that there was nothing left to draw.
    """

    trials: tuple[Trial, ...] = ()
    refusals: tuple[Refused, ...] = ()
    launched: Mapping[int, Started]
    exhausted: bool = False

    @property
    def refused(self) -> tuple[Trial, ...]:
        """What was refused, in the order of its numbers."""
        return tuple(refusal.trial for refusal in self.refusals)

    @property
    def unfinished(self) -> tuple[Started, ...]:
        """What was started and has no end on record."""
        finished = {trial.number for trial in self.trials}
        return tuple(
            started for number, started in sorted(self.launched.items()) if number not in finished
        )

    @property
    def num_records(self) -> int:
        """How many configurations were ever drawn."""
        return len(self.launched) + len(self.refusals)


class Ledger:
    """The ledger of one sweep, `ledger.jsonl` in its folder."""

    def __init__(self, folder: Path) -> None:
        """Creates nothing: reading a ledger that is not there gives an empty state."""
        self.folder = folder
        self._file = folder / "ledger.jsonl"
        self._open: IO[bytes] | None = None

    @contextmanager
    def claim(self) -> Iterator[None]:
        """This process alone may write while it lasts; may be nested.

        Raises:
            MachineError: when another process drives this sweep, or the folder cannot be written.
        """
        if self._open is not None:
            yield
            return
        with self._locked() as file:
            _cut_torn_line(file)
            self._open = file
            try:
                yield
            finally:
                self._open = None

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = self._file.open("a+b", buffering=0)
        except OSError as error:
            msg = f"{self._file} cannot be written: {error.strerror} (set PARETUNE_HOME elsewhere)"
            raise MachineError(msg) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                msg = (
                    f"another process is running this sweep: {self._file} is locked "
                    "(stop it, or wait for its end)"
                )
                raise MachineError(msg) from error
            _sync_folder(self.folder)
            yield file

    def is_claimed(self) -> bool:
        """Whether some process is driving this sweep now."""
        if not self._file.exists():
            return False
        with self._file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def started(self, started: Started) -> None:
        """Records a configuration that is about to be launched."""
        self._append({"record": "started", **asdict(started)})

    def finished(self, trial: Trial) -> None:
        """Records how a launched configuration ended."""
        self._append({"record": "finished", "trial": trial.to_json()})

    def refused(self, refused: Refused) -> None:
        """Records a configuration that is not launched."""
        record = {"point": dict(refused.point), "trial": refused.trial.to_json()}
        self._append({"record": "refused", **record})

    def exhausted(self) -> None:
        """Records that every point of the space was drawn."""
        self._append({"record": "exhausted"})

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._open is None:
            msg = "the ledger is written only inside `claim`"
            raise RuntimeError(msg)
        try:
            _append_line(self._open, json.dumps(record).encode() + b"\n")
        except OSError as error:
            msg = (
                f"{self._file} cannot be written: {error.strerror} "
                "(free some space, then resume the sweep)"
            )
            raise MachineError(msg) from error

    def read(self) -> LedgerState:
        """Everything on record. A trial that was written twice counts once, as it ended first.

        Raises:
            MachineError: on a line that is no record.
        """
        trials: dict[int, Trial] = {}
        refusals: dict[int, Refused] = {}
        launched: dict[int, Started] = {}
        exhausted = False
        for record in self._records():
            kind = record.pop("record")
            if kind == "exhausted":
                exhausted = True
            elif kind == "started":
                started = Started.from_json(record)
                launched.setdefault(started.number, started)
            else:
                trial = Trial.from_json(record["trial"])
                if kind == "finished":
                    trials.setdefault(trial.number, trial)
                else:
                    refusals.setdefault(trial.number, Refused(point=record["point"], trial=trial))
        return LedgerState(
            trials=tuple(trial for _, trial in sorted(trials.items())),
            refusals=tuple(refusal for _, refusal in sorted(refusals.items())),
            launched=launched,
            exhausted=exhausted,
        )

    def _records(self) -> Iterator[dict[str, Any]]:
        content = self._file.read_bytes() if self._file.exists() else b""
        for index, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                msg = f"{self._file}: line {index} is no record ({error}): remove that line"
                raise MachineError(msg) from error


def _append_line(file: IO[bytes], line: bytes) -> None:
    end = file.seek(0, os.SEEK_END)
    try:
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def _cut_torn_line(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
