"""What is planned, for the terminal: the structures of a space, and devices side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from search.units import GIB, MIB, format_bytes, heading, shown

if TYPE_CHECKING:
    from search.comparison import Compared, Comparison
    from search.memory.speed import Speed
    from search.plan import Plan, PlannedPoint, Unpredicted

_GAP = "  "
_WIDTH = 6
"""Of a heading: sizes are short, and six columns must go into 80 letters."""
_WARNING = "yellow"


def plan_table(plan: Plan) -> Text:
    """One row a predicted structure, from the least memory to the most.

    Below a row, what would make it fit, or what was changed so that it does.
    """
    unit, num_bytes = ("GiB", GIB) if plan.budget_bytes >= GIB else ("MiB", MIB)
    points = sorted(plan.points, key=lambda point: point.verdict.predicted.expected_bytes)
    timed = any(point.speed for point in points)
    heads = [f"peak\n{unit}", f"headroom\n{unit}", "decided by", *["estimated\ntokens/s"] * timed]
    rows = [
        (
            *(shown(value) for value in point.point.values()),
            *_sizes(point, plan.budget_bytes, num_bytes),
            _decided_by(point),
            *[speed_range(point.speed)] * timed,
        )
        for point in points
    ]
    names = (heading(name, width=_WIDTH) for name in plan.points[0].point)
    mended = any(point.mend for point in points)
    return _table(
        [*names, *heads],
        rows,
        notes=[_note(point, mended=mended) for point in points],
        warned=[not point.fits for point in points],
    )


def _sizes(point: PlannedPoint, budget_bytes: int, unit_bytes: int) -> tuple[str, str]:
    """The predicted peak, and what is left of the budget above its upper end; below 0 it is short.

    What fits by giving cached memory back has nothing left.
    """
    predicted = point.verdict.predicted
    left_bytes = -point.excess_bytes or max(0, budget_bytes - predicted.high_bytes)
    return f"{predicted.expected_bytes / unit_bytes:.4g}", f"{left_bytes / unit_bytes:.4g}"


def _decided_by(point: PlannedPoint) -> str:
    predicted = point.verdict.predicted
    part = max(predicted.parts, key=lambda name: predicted.parts[name], default="")
    return f"{part}, {predicted.phase.replace('_', ' ')}"


def _note(point: PlannedPoint, *, mended: bool) -> str:
    """Of a mend: the change, what it is predicted to need, the time it is estimated to take."""
    if point.mend is not None:
        needed = format_bytes(point.mend.predicted.expected_bytes)
        return f"fits with {point.mend}: {needed}, ~{point.mend.slow_down:.2f} x the time"
    if point.rescued:
        return f"fits as rescued: {point.rescued}"
    return "no single change makes it fit" if mended and not point.fits else ""


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    notes: Sequence[str],
    warned: Sequence[bool],
) -> Text:
    """Columns as wide as they must be; a note has a line of its own below its row."""
    upper = ["" if "\n" not in head else head.partition("\n")[0] for head in heads]
    lower = [head.rpartition("\n")[2] for head in heads]
    widths = [max(map(len, column)) for column in zip(upper, lower, *rows, strict=True)]
    top = [f"{_line(upper, widths)}\n"] * any(upper)
    text = Text.assemble(*((line, "bold") for line in top), (_line(lower, widths), "bold"))
    for row, note, is_warned in zip(rows, notes, warned, strict=True):
        style = _WARNING if is_warned else ""
        text.append(f"\n{_line(row, widths)}", style=style)
        if note:
            text.append(f"\n{_GAP}{note}", style=style)
    return text


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    return _GAP.join(map(str.ljust, cells, widths)).rstrip()


def speed_range(speed: Speed | None) -> str:
    """Between which tokens per second a speed is estimated, such as `1.2k-9.8k`."""
    if speed is None:
        return ""
    ends = (speed.low_tokens_per_second, speed.high_tokens_per_second)
    return "-".join(map(_in_two_figures, ends))


def _in_two_figures(value: float) -> str:
    for factor, letter in ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")):
        rounded = float(f"{value / factor:.2g}")
        if rounded < 1000:
            return f"{rounded:g}{letter}"
    return f"{value:.2g}"


def plan_summary(plan: Plan) -> str:
    """The share of the space that fits, in a sentence."""
    num_fitting = sum(point.fits for point in plan.points)
    which = "structures" if plan.complete else "structures looked at"
    return (
        f"{num_fitting} of {len(plan.points)} {which} fit into {format_bytes(plan.budget_bytes)} "
        f"({plan.share_that_fits:.0%})"
    )


def plan_faults(plan: Plan) -> str:
    """What could not be predicted, or not quickly, and why: a line a reason; empty without any."""
    lines = _unpredicted(each for each in plan.unpredicted if not each.is_refused)
    lines += (f"traced point by point: {reason}" for reason in plan.point_by_point)
    return "\n".join(lines)


def plan_refusals(plan: Plan) -> str:
    """What would be predicted wrongly, and why: a line a reason; empty without any."""
    return "\n".join(_unpredicted(each for each in plan.unpredicted if each.is_refused))


def _unpredicted(found: Iterable[Unpredicted]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for each in found:
        point = " ".join(f"{name} {shown(value)}," for name, value in each.point.items())
        by_reason.setdefault(each.reason, []).append(point.rstrip(","))
    lines = []
    for reason, points in by_reason.items():
        others = f" and {len(points) - 1} more" if len(points) > 1 else ""
        lines.append(f"cannot be predicted at {points[0]}{others}: {reason}")
    return lines


def explained_speeds(num_measured: int) -> str:
    """What the estimated speeds are, in a sentence."""
    if not num_measured:
        return "speeds are estimates, corrected by no measured trial of this device yet"
    trials = f"{num_measured} measured trial{'' if num_measured == 1 else 's'}"
    return f"speeds are estimates, corrected by {trials} of this device"


def comparison_table(found: Comparison) -> Text:
    """One row a device, in the order of the comparison."""
    priced = any(row.price_per_hour is not None for row in found.rows)
    heads = ["device", "memory", "share\nfits", "micro-batch", "estimated\ntokens/s"]
    heads += ["price\nan hour", "~cost of\n1M tokens"] * priced
    rows = [(*_compared(row), *_costs(row) * priced) for row in found.rows]
    warned = [found.reference is not None and row.largest is None for row in found.rows]
    return _table(heads, rows, notes=[row.rescued for row in found.rows], warned=warned)


def _compared(row: Compared) -> Iterator[str]:
    yield row.name
    yield format_bytes(row.budget_bytes)
    yield f"{row.share_that_fits:.0%}"
    yield f"{row.micro_batch_size} of {row.batch_size}" if row.largest else "does not fit"
    yield speed_range(row.speed)


def _costs(row: Compared) -> tuple[str, str]:
    price = "" if row.price_per_hour is None else f"{row.price_per_hour:.4g}"
    cost = "" if row.cost is None else f"{row.cost.low_cost:.2g}-{row.cost.high_cost:.2g}"
    return price, cost


def comparison_summary(found: Comparison) -> str:
    """What was compared, and the smallest and the cheapest device for it: a line each."""
    if found.reference is None:
        return "nothing of the space fits on any of them, not even in the smallest micro-batches"
    what = ", ".join(f"{name} {shown(value)}" for name, value in found.reference.items())
    lines = [
        f"compared at {what}",
        "the largest of the space that fits on any of them, in micro-batches where need be",
    ]
    lines += [f"smallest that fits: {found.smallest}"] if found.smallest else []
    lines += [f"cheapest that fits, as estimated: {found.cheapest}"] if found.cheapest else []
    corrected = [f"{row.num_measured} on {row.name}" for row in found.rows if row.num_measured]
    by = (
        f"corrected by measured trials ({', '.join(corrected)})"
        if corrected
        else "nothing measured"
    )
    lines.append(f"speeds and costs are estimates, {by}; memory is all that each device has")
    return "\n".join(lines)
