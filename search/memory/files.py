"""What this user's machine remembers: files in the cache folder, each whole or not there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """Where this user keeps what can be measured or computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paretune"


def read_json(file: Path) -> dict[str, Any]:
    """What a file holds; empty where it is missing or damaged, as all in it can be had again."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Puts a file in place at once, over an earlier one.

    Raises:
        OSError: when the folder cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=2)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def append_json(file: Path, record: Mapping[str, Any]) -> None:
    """Adds a line to a file of one JSON record a line; others may do so at the same time.

    The lock keeps two writers' bytes apart. A line that a crash cut short is closed first, so that
    it spoils no other.

    Raises:
        OSError: when the file cannot be written; nothing of the record is left in it then.
    """
    line = json.dumps(record).encode() + b"\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        size = stream.seek(0, os.SEEK_END)
        if size and os.pread(stream.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line
        if stream.write(line) != len(line):
            stream.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))


def read_json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of one a line; none where it is missing, without what is damaged."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
