"""The rows of published measurements: which group each is of, whether it counts, what it says.

A group is a file's stem, or in `published.json` a row's `group` with `-` read as `_`.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.errors import InputError
from search.units import MIB

Row = Mapping[str, Any]

PUBLISHED = "published"
CPU = "cpu"
"""The group that is measured where this runs; it needs no file."""
_MARKS = ("suspect_extra_load", "targeted_page")
_GRADES = ("A", "A-")
GPUMEMNET = ("gpumemnet_transformer", "gpumemnet_mlp")
_OOM = ("OOM_CRASH", "oom")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One row: what its run took, and what was predicted for it.

    Where it `ran_out` of memory, `measured_bytes` is what it could have had. `fits` is the
    prediction, None where the device's capacity was not asked.
    """

    group: str
    name: str
    measured_bytes: int
    expected_bytes: int
    low_bytes: int
    high_bytes: int
    ran_out: bool = False
    fits: bool | None = None
    kind: str = "cuda"

    @property
    def error_percent(self) -> float:
        """How far the prediction lies above the measurement."""
        return 100 * (self.expected_bytes / self.measured_bytes - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One row that is not in the figures, and why."""

    group: str
    name: str
    reason: str


def rows_of(folder: Path) -> dict[str, list[Row]]:
    """All rows of a folder's files, by group; of equal rows the first.

    Raises:
        InputError: where there is no such folder, no file in it, or a file of another form.
    """
    if not folder.is_dir():
        msg = f"{folder}: no such folder (try --data with the folder of published.json)"
        raise InputError(msg)
    groups: dict[str, list[Row]] = defaultdict(list)
    for file in sorted(folder.glob("*.json")):
        for row in _read(file):
            groups[_group(file, row)].append(row)
    if not groups:
        msg = f"{folder}: no rows in it (expected files such as gpumemnet_mlp.json)"
        raise InputError(msg)
    return dict(groups)


def _read(file: Path) -> list[Row]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        rows = content["rows"] if isinstance(content, dict) else content
    except (ValueError, KeyError) as error:
        msg = f"{file}: not a file of measurements ({error})"
        raise InputError(msg) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = f"{file}: not a file of measurements (expected a list of rows)"
        raise InputError(msg)
    return rows


def _group(file: Path, row: Row) -> str:
    if file.stem == PUBLISHED and "group" in row:
        return str(row["group"]).replace("-", "_")
    return file.stem


def chosen(
    rows: Sequence[Row], group: str, *, limit: int | None, seed: int
) -> tuple[list[Row], list[LeftOut]]:
    """The rows that can be rebuilt and count, at most `limit` of them at random; and the others."""
    kept, left_out = [], []
    for row in rows:
        reason = why_left_out(row, group)
        if reason is None:
            kept.append(row)
        else:
            left_out.append(LeftOut(group=group, name=str(row.get("id", "?")), reason=reason))
    if limit is not None and limit < len(kept):
        kept = random.Random(f"{seed} {group}").sample(kept, limit)  # noqa: S311 - a sample
    return kept, left_out


def why_left_out(row: Row, group: str) -> str | None:
    """Why a row is not in the figures; None where it is."""
    mark = next((mark for mark in _MARKS if row.get(mark)), None)
    if mark is not None:
        return f"marked {mark}"
    if row.get("grade", "A") not in _GRADES:
        return f"grade {row['grade']}: not enough is given to rebuild it operator by operator"
    if group == "liger":
        from benchmarks import published_liger

        return published_liger.why_not(row)
    if group in GPUMEMNET:
        from benchmarks import published_gpumemnet

        return published_gpumemnet.why_not(row)
    from benchmarks import published_models

    return published_models.why_not(row) if "group" in row else f"no rows of '{group}' are rebuilt"


def judged(group: str, row: Row) -> Judged:
    """The row beside its prediction."""
    if group in GPUMEMNET:
        return _whole_device(group, row)
    from benchmarks import published_liger, published_models

    module = published_liger if group == "liger" else published_models
    predicted_bytes = module.predicted_allocated_bytes(row)
    return Judged(
        group=group,
        name=row["id"],
        measured_bytes=measured_bytes(row),
        expected_bytes=predicted_bytes,
        low_bytes=predicted_bytes,
        high_bytes=predicted_bytes,
        ran_out=row.get("outcome") in _OOM,
    )


def _whole_device(group: str, row: Row) -> Judged:
    from benchmarks.published_gpumemnet import USABLE_BYTES, forecast

    predicted = forecast(row)
    ran_out = row.get("status", row.get("outcome")) in _OOM
    return Judged(
        group=group,
        name=row["id"],
        measured_bytes=USABLE_BYTES if ran_out else measured_bytes(row),
        expected_bytes=predicted.expected_bytes,
        low_bytes=predicted.low_bytes,
        high_bytes=predicted.high_bytes,
        ran_out=ran_out,
        fits=predicted.fits,
    )


def measured_bytes(row: Row) -> int:
    """What a row says was used; GB as 1e9 and MB as MiB where the row's unit says so.

    Raises:
        InputError: where the row's unit is not known.
    """
    if "max_gpu_mem_mib" in row:
        return int(row["max_gpu_mem_mib"]) * MIB
    units = {"bytes": 1, "MiB": MIB, "GB": 10**9, "GiB": 2**30}
    unit = units.get(str(row["unit"]).split(" ")[0])
    if unit is None:
        msg = f"{row['id']}: the unit '{row['unit']}' is not known"
        raise InputError(msg)
    return round(row["value"] * unit)
