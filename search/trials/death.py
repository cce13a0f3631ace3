"""Why a worker's process ended in the middle of a trial, from what it left behind."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LAST_BYTES = 20_000
_OUT_OF_MEMORY = re.compile(r"bad_alloc|MemoryError|[Cc]an(no|')t allocate memory")
_CRASH = re.compile(r"SIG(SEGV|ABRT|BUS|FPE|ILL)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker's process ended in the middle of a trial."""

    message: str
    is_out_of_memory: bool
    """Whether memory is known, or taken, to be why."""


def death(*, last_words: str, limit_in_force: bool) -> Death:
    """Why a process died.

    Under a limit an allocation that is refused may end a process without a word, and so does the
    system's killer of processes when memory runs out.

    Args:
        last_words: the end of its error output.
        limit_in_force: whether the system held it to the trial's budget.
    """
    if said := _OUT_OF_MEMORY.search(last_words):
        message = f"the worker process died when it was refused memory ({said.group()})"
        return Death(message=message, is_out_of_memory=True)
    if crashed := _CRASH.search(last_words):
        message = f"the worker process crashed ({crashed.group()}):\n{last_words.strip()}"
        return Death(message=message, is_out_of_memory=False)
    message = "the worker process was killed"
    if limit_in_force:
        message += ", most likely for want of memory"
    return Death(message=message, is_out_of_memory=limit_in_force)


def last_words(error_text: str, session_name: str) -> str:
    """The end of the error output of the worker that Ray's error names; empty if it is not here.

    Args:
        error_text: of Ray's error, which gives the process id.
        session_name: of the Ray session, whose logs hold the output.
    """
    pid = re.search(r"pid[:=]\s*(\d+)", error_text)
    if pid is None:
        return ""
    logs = Path(tempfile.gettempdir()) / "ray" / session_name / "logs"
    for file in logs.glob(f"worker-*-{pid.group(1)}.err"):
        return file.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
    return ""
