"""Figures of predictions beside measurements: errors, verdicts, and how often `high` is passed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.accuracy_rows import Judged
from search.memory.calibration import Calibration
from search.memory.residuals import SCALES, Residual

RISK = 0.02
_UNDER_PERCENT = -2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one group. Errors are those of rows that did not run out of memory, without their sign.

    The 95th percentile is the least error that 95 % of the rows stay within. `failures` are runs
    that needed more than the predicted `high`.
    """

    rows: int
    median_error_percent: float
    p95_error_percent: float
    max_error_percent: float
    under_by_2_percent_share: float
    called_fitting_but_oom: int
    called_oom_but_fitting: int
    failures: int
    out_of_memory: int

    def as_json(self) -> dict[str, float]:
        """The figures that are promised by name."""
        return {
            "rows": self.rows,
            "median_error_percent": round(self.median_error_percent, 4),
            "p95_error_percent": round(self.p95_error_percent, 4),
            "max_error_percent": round(self.max_error_percent, 4),
            "under_by_2_percent_share": round(self.under_by_2_percent_share, 4),
            "called_fitting_but_oom": self.called_fitting_but_oom,
            "called_oom_but_fitting": self.called_oom_but_fitting,
        }


def figures_by_group(judged: Sequence[Judged]) -> dict[str, Figures]:
    """The figures of each group that has a row that went on, in the order of their names."""
    groups: dict[str, list[Judged]] = {}
    for row in sorted(judged, key=lambda row: row.group):
        groups.setdefault(row.group, []).append(row)
    return {
        name: _figures(rows, _failures(name, groups))
        for name, rows in groups.items()
        if not all(row.ran_out for row in rows)
    }


def _figures(rows: Sequence[Judged], failures: int) -> Figures:
    went_on = [row for row in rows if not row.ran_out]
    errors = [row.error_percent for row in went_on]
    sizes = sorted(map(abs, errors))
    return Figures(
        rows=len(rows),
        median_error_percent=statistics.median(sizes),
        p95_error_percent=sizes[math.ceil(0.95 * len(sizes)) - 1],
        max_error_percent=sizes[-1],
        under_by_2_percent_share=sum(error < _UNDER_PERCENT for error in errors) / len(errors),
        called_fitting_but_oom=sum(row.ran_out and row.fits is True for row in rows),
        called_oom_but_fitting=sum(row.fits is False for row in went_on),
        failures=failures,
        out_of_memory=len(rows) - len(went_on),
    )


def _failures(group: str, groups: Mapping[str, Sequence[Judged]]) -> int:
    """Runs of a group that needed more than `high`, its margin taken from all other groups.

    What the mechanism leaves open, the context and the order of addresses, comes on top of the
    margin, as in `search/memory/margins.py`.
    """
    rows = groups[group]
    scale = SCALES[rows[0].kind]
    prior = [
        in_scale(row, rows[0].kind)
        for name, others in groups.items()
        if name != group
        for row in others
    ]
    calibration = Calibration(prior, (), RISK, scale)
    return sum(_passes(row, calibration) for row in rows)


def _passes(row: Judged, calibration: Calibration) -> bool:
    """Whether the run needed more than its `high`; one that ran out needed more than it had."""
    _, high_bytes = calibration.interval(row.expected_bytes)
    high_bytes += row.high_bytes - row.expected_bytes
    return row.measured_bytes >= high_bytes if row.ran_out else row.measured_bytes > high_bytes


def in_scale(row: Judged, kind: str) -> Residual:
    """The error of a row, as large in ordinary errors of another kind of device."""
    residual = Residual(
        predicted_bytes=row.expected_bytes, measured_bytes=row.measured_bytes, censored=row.ran_out
    )
    if kind == row.kind:
        return residual
    error_bytes = SCALES[row.kind].score(residual) * SCALES[kind].at(row.expected_bytes)
    return Residual(
        predicted_bytes=row.expected_bytes,
        measured_bytes=max(0, round(row.expected_bytes + error_bytes)),
        censored=row.ran_out,
    )
