"""A command that trains by itself, in processes of its own, and prints metrics as JSON lines."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from search.memory.process_tree import TreePeak, measure_tree_peak
from search.results import Outcome, ParamValue
from search.sweep.command import arguments
from search.trials.reports import Ending, Reports, TrialOverError
from search.units import format_bytes

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.trials.attempt import Task

_STARTED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Binds the command's life to that of this process, then becomes it.

Source: prctl(2), PR_SET_PDEATHSIG (1) with SIGKILL (9); it outlives execve.
"""
_TAIL_LINES = 30
_SECONDS_TO_END = 5.0
"""What a command gets to save its work once it is told to end."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a killed process, and of a shell whose process was."""
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|C(UBLAS|UDNN)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|MemoryError|bad_alloc"
    r"|[Cc]an(no|')t allocate memory|not enough memory"
)
"""What torch, TensorFlow, JAX, Python, C++ and the system say when memory runs out."""


@contextmanager
def running(
    task: Task, reports: Reports, *, command: str, device: Device, log: Path
) -> Iterator[_CommandProcess]:
    """The command at work, its memory measured and its budget enforced from outside.

    What it prints beside its reports goes into the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    words = arguments(command, task.params)
    with log.open("a", encoding="utf-8", buffering=1) as file:
        source = _CommandProcess(task, reports, words, file)
        try:
            with measure_tree_peak(source.pid, device, source.looked) as source.peak:
                try:
                    yield source
                finally:
                    source.stop()
        finally:
            source.stop()
            source.details["log"] = str(log)


class _CommandProcess:
    """The process, the threads that read what it prints, and what is known of its end."""

    def __init__(self, task: Task, reports: Reports, words: list[str], log: IO[str]) -> None:
        self.details: dict[str, ParamValue] = {"command": shlex.join(words)}
        self.peak = TreePeak()
        self._budget_bytes = task.budget_bytes
        self._reports = reports
        self._words = words
        self._log = log
        self._over: Ending | None = None
        self._wake = threading.Event()
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = _started(words)
        self._readers = [
            threading.Thread(target=self._read_reports, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Of the command itself, whose process group has the same number."""
        return self._process.pid

    @property
    def peak_bytes(self) -> int:
        """Of all its processes together."""
        return self.peak.num_bytes

    def looked(self, peak_bytes: int) -> None:
        """Ends what takes more than its budget. Called by the thread that looks."""
        if peak_bytes > self._budget_bytes and self._over is None:
            taken, budget = format_bytes(peak_bytes), format_bytes(self._budget_bytes)
            message = f"its processes took {taken}, {budget} is available"
            self._end(Ending(outcome=Outcome.OUT_OF_MEMORY, message=message))
            self._signal(signal.SIGKILL)

    def _end(self, ending: Ending) -> None:
        self._over = self._over or ending
        self._wake.set()

    def ended(self, within_seconds: float) -> Ending | None:
        """How it ended: first what ended it from here, then what it says itself."""
        if self._over is None and self._process.poll() is None:
            self._wake.wait(within_seconds)
        if self._over is None and self._process.poll() is not None:
            self.stop()
            self._over = self._over or self._exited(self._process.returncode)
        return self._over

    def _exited(self, code: int) -> Ending:
        if code == 0:
            return self._reports.completed()
        tail = "\n".join(self._last_lines)
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        message = f"{shlex.join(self._words)}\nended with {how}; its output: {self._log.name}"
        if said := _OUT_OF_MEMORY.search(tail):
            message = f"{message}\nit ran out of memory ({said.group()}):\n{tail}"
            return Ending(outcome=Outcome.OUT_OF_MEMORY, message=message)
        if code in _KILLED:
            message = f"{message}\n{tail}\nit was killed, most likely for want of memory"
            return Ending(outcome=Outcome.OUT_OF_MEMORY, message=message)
        return Ending(outcome=Outcome.FAILED, message=f"{message}\n{tail}".rstrip())

    def stop(self) -> None:
        """Ends all its processes, and reads to its end what they printed."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(_SECONDS_TO_END)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read_reports(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                figures = figures_of(line)
                if not figures:
                    self._log.write(line)
                elif self._over is None:
                    self._take(figures)

    def _take(self, figures: Mapping[str, float]) -> None:
        try:
            self._reports.take(figures)
        except TrialOverError as over:
            self._end(over.ending)

    def _read_errors(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._log.write(line)
                self._last_lines.append(line.rstrip("\n"))


def _started(words: list[str]) -> subprocess.Popen[str]:
    """The command in a group of its own; what it prints comes line by line where it is Python."""
    return subprocess.Popen(  # noqa: S603 - the user's own command, and no shell
        [sys.executable, "-S", "-E", "-c", _STARTED, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def figures_of(line: str) -> dict[str, float]:
    """The numbers of a line that is a JSON object; empty for any other line."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
