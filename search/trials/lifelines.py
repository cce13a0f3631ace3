"""Processes that end with the one they work for, however that died."""

from __future__ import annotations

import os
import select
import threading


def end_with(pid: int) -> None:
    """From now on this process ends as soon as another on this machine has ended."""
    threading.Thread(target=_wait_for_end, args=(pid,), daemon=True).start()


def _wait_for_end(pid: int) -> None:
    try:
        other = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    select.select([other], [], [])
    os._exit(1)
