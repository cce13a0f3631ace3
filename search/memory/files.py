"""What this user's machine remembers: files in the cache folder, each whole or not there."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
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
