"""Where commands print, and how they are asked to stop."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from search.errors import MachineError

_PLAIN = str.maketrans("↓↑●·│└─━╸╺…", "v^*.|+----~")
"""Signs of ours and their like in ASCII, for a screen that has no others."""


_WIDEST = 10_000


class _Screen:
    """Standard output that outlives its reader: what runs is worth more than its lines.

    A closed pipe, a terminal that is gone or a full disk take the rest of the output and nothing
    else. What its encoding lacks is written with what it has.
    """

    @property
    def _stream(self) -> Any:
        return getattr(sys.stdout, "rich_proxied_file", sys.stdout)

    @property
    def encoding(self) -> str:
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return bool(self._stream.isatty())

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def write(self, text: str) -> int:
        try:
            self._stream.write(encodable(text, self.encoding))
        except OSError:
            _leave(self.fileno())
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _leave(self.fileno())


def _leave(descriptor: int) -> None:
    """Sends whatever is still written to a file that nobody reads into nowhere."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)


def encodable(text: str, encoding: str) -> str:
    """The text itself, or the nearest to it that an encoding has."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


console = Console(file=cast("IO[str]", _Screen()))


def say(text: str) -> None:
    """Prints a line as it is: no markup, no colours, no folding."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_table(table: Table | Text) -> None:
    """Prints a table whole: lines longer than the screen are folded by it, and nothing is cut."""
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    Console(file=console.file, width=max(console.width, needed)).print(table)


def warn(text: str) -> None:
    """Prints a line beside what was asked for, to standard error."""
    sys.stderr.write(f"{text}\n")


def print_file(text: str) -> None:
    """Prints a file itself, byte for byte.

    Raises:
        MachineError: when it cannot be written whole, though somebody wants it.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
    except BrokenPipeError:
        _leave(sys.stdout.fileno())
    except OSError as error:
        _leave(sys.stdout.fileno())
        msg = f"the output cannot be written: {error.strerror}"
        raise MachineError(msg) from error


def print_json(value: object) -> None:
    """Prints plain JSON, whatever the width of the terminal."""
    print_file(json.dumps(value, indent=2) + "\n")


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest(threading.Event):
    """Set by Ctrl-C and its like, or by `paretune stop` from another process through a file."""

    def __init__(self, file: Path | None = None) -> None:
        """Forgets a request that an earlier run was given.

        Args:
            file: whose existence is a request too; default: Ctrl-C alone counts.
        """
        super().__init__()
        self._file = file
        if file is not None:
            file.unlink(missing_ok=True)

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return super().is_set() or (self._file is not None and self._file.exists())

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Takes the first Ctrl-C as a request while it lasts; the second ends the process.

        So it takes SIGTERM, and the SIGHUP of a terminal that is closed.
        """

        def asked(_signal: int, _frame: FrameType | None) -> None:
            if self.is_set():
                raise KeyboardInterrupt
            self.set()
            say("stopping at the next step; Ctrl-C again ends at once")

        before = {number: signal.signal(number, asked) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
