"""Where commands print, and how they are asked to stop."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

console = Console()


def say(text: str) -> None:
    """Prints a line as it is: no markup, no colours, no folding."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Prints plain JSON, whatever the width of the terminal."""
    say(json.dumps(value, indent=2))


class StopRequest(threading.Event):
    """Set by Ctrl-C, or by `paretune stop` from another process through a file."""

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
        """Takes the first Ctrl-C as a request while it lasts; the second ends the process."""

        def asked(_signal: int, _frame: FrameType | None) -> None:
            if self.is_set():
                raise KeyboardInterrupt
            self.set()
            say("stopping at the next step; Ctrl-C again ends at once")

        before = signal.signal(signal.SIGINT, asked)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
