"""A figure that one of our modules measures in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from search.errors import MachineError


def measured_by(module: str, *arguments: str, what: str) -> int:
    """The last number that a module of ours prints, see `all_measured_by`."""
    return all_measured_by(module, *arguments, what=what, count=1)[0]


def all_measured_by(module: str, *arguments: str, what: str, count: int) -> tuple[int, ...]:
    """The last numbers that a module of ours prints, run as a program with this process's paths.

    Raises:
        MachineError: when it fails; `what` says what was measured, and its own words follow.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        msg = f"measuring {what} failed:\n{done.stderr.strip()}"
        raise MachineError(msg)
    return tuple(map(int, done.stdout.split()[-count:]))
