"""What is planned, for the terminal: the structures of a space, and devices side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from search.units import GIB, MIB, format_bytes, heading, shown

if TYPE_CHECKING:
    from search.comparison import Compared, Comparison
    from search.memory.speed import Speed
    from search.plan import Plan, PlannedPoint, Unpredicted
    from search.results import ParamValue

_GAP = "  "
_WIDTH = 6
"""Of a heading: sizes are short, and six columns must go into 80 letters."""
_WARNING, _NOTE = "yellow", "dim"
_BATCH = ("batch_size", "micro_batch_size")


def plan_table(plan: Plan) -> Text:
    """One row a structure, with its largest micro-batch that fits, from the least memory on.

    A structure is all but the sizes of the batch. Below a row stand the larger ones, which do not
    fit, each with what would make it fit; of a structure in which nothing fits, the smallest is
    shown.
    """
    unit, num_bytes = ("GiB", GIB) if plan.budget_bytes >= GIB else ("MiB", MIB)
    structures = sorted(_structures(plan.points), key=lambda found: _needed(found.shown))
    timed = any(found.shown.speed for found in structures)
    heads = ["largest\nfits", f"peak\n{unit}", f"headroom\n{unit}", "decided by"]
    heads += ["estimated\ntokens/s"] * timed
    rows = [
        (
            *(shown(value) for value in found.values.values()),
            _largest(found.shown),
            *_sizes(found.shown, plan.budget_bytes, num_bytes),
            _decided_by(found.shown),
            *[speed_range(found.shown.speed)] * timed,
        )
        for found in structures
    ]
    names = (heading(name, width=_WIDTH) for name in structures[0].values)
    mended = any(point.mend for point in plan.points)
    return _table(
        [*names, *heads],
        rows,
        notes=[_notes(found, num_bytes, unit, mended=mended) for found in structures],
        warned=[not found.shown.fits for found in structures],
    )


class _Structure(NamedTuple):
    """Points that differ in the sizes of the batch alone, and the one that stands for them."""

    values: Mapping[str, ParamValue]
    shown: PlannedPoint
    larger: Sequence[PlannedPoint]


def _structures(points: Iterable[PlannedPoint]) -> Iterator[_Structure]:
    groups: dict[tuple[tuple[str, ParamValue], ...], list[PlannedPoint]] = {}
    for point in points:
        values = {name: value for name, value in point.point.items() if name not in _BATCH}
        groups.setdefault(tuple(values.items()), []).append(point)
    for key, members in groups.items():
        members.sort(key=_needed)
        fitting = [point for point in members if point.fits]
        chosen = max(fitting, key=_batch, default=members[0])
        yield _Structure(dict(key), chosen, [point for point in members if not point.fits])


def _batch(point: PlannedPoint) -> tuple[int, int]:
    """Samples in one forward pass, then in a step; 0 where nothing is said of them."""
    params = {**point.point, **point.verdict.params}
    batch_size = params.get("batch_size", 0)
    micro_batch_size = params.get("micro_batch_size", "equal")
    batch = batch_size if isinstance(batch_size, int) else 0
    ranks = params.get("world_size", 1)
    share = batch // ranks if isinstance(ranks, int) else batch
    return (micro_batch_size if isinstance(micro_batch_size, int) else share), batch


def _largest(point: PlannedPoint) -> str:
    if not point.fits:
        return "none"
    micro_batch_size, batch_size = _batch(point)
    whole = micro_batch_size == batch_size
    return f"{batch_size}" if whole else f"{micro_batch_size} of {batch_size}"


def _needed(point: PlannedPoint) -> int:
    return point.verdict.predicted.expected_bytes


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


def _notes(found: _Structure, unit_bytes: int, unit: str, *, mended: bool) -> Iterator[str]:
    """What was changed so that it fits, then a line for each that does not."""
    if found.shown.rescued:
        yield f"fits as rescued: {found.shown.rescued}"
    for point in found.larger:
        micro_batch_size, batch_size = _batch(point)
        whole = micro_batch_size == batch_size
        size = f"{batch_size}" if whole else f"{micro_batch_size} of {batch_size}"
        needed = f"{size} takes {_needed(point) / unit_bytes:.4g} {unit}"
        if mend := _mend(point, mended=mended):
            yield f"{needed}; {mend}"
        elif point is not found.shown:
            yield needed


def _mend(point: PlannedPoint, *, mended: bool) -> str:
    """The change, what it is predicted to need, the time it is estimated to take."""
    if point.mend is not None:
        needed = format_bytes(point.mend.predicted.expected_bytes)
        return f"with {point.mend} {needed}, ~{point.mend.slow_down:.2f} x the time"
    return "no single change makes it fit" if mended else ""


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    notes: Sequence[Iterable[str]],
    warned: Sequence[bool],
) -> Text:
    """Columns as wide as they must be; each note has a line of its own below its row."""
    upper = ["" if "\n" not in head else head.partition("\n")[0] for head in heads]
    lower = [head.rpartition("\n")[2] for head in heads]
    widths = [max(map(len, column)) for column in zip(upper, lower, *rows, strict=True)]
    top = [f"{_line(upper, widths)}\n"] * any(upper)
    text = Text.assemble(*((line, "bold") for line in top), (_line(lower, widths), "bold"))
    for row, note, is_warned in zip(rows, notes, warned, strict=True):
        style = _WARNING if is_warned else ""
        text.append(f"\n{_line(row, widths)}", style=style)
        for each in note:
            text.append(f"\n{_GAP}{each}", style=style or _NOTE)
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
    if not plan.points:
        return "nothing of the space can be predicted"
    counted = plan.counted
    which = "structures" if plan.complete else "structures looked at"
    sentence = (
        f"{counted.num_fitting:,} of {counted.num_points:,} {which} fit into "
        f"{format_bytes(plan.budget_bytes)} ({plan.share_that_fits:.0%})"
    )
    if not counted.num_undecided:
        return sentence
    return f"{sentence}; of {counted.num_undecided:,} more nobody knows without judging each"


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
        where = f" at {points[0]}{others}" if points[0] else ""
        lines.append(f"cannot be predicted{where}: {reason}")
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
    return _table(
        heads, rows, notes=[[row.rescued] * bool(row.rescued) for row in found.rows], warned=warned
    )


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
