"""The memory of one run over its phases, for the terminal and as a page that needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from search.units import format_bytes

if TYPE_CHECKING:
    from search.memory.timeline import Moment, Timeline

PARTS = {
    "context": ("C", "#8c8c8c"),
    "overhead": ("o", "#8c8c8c"),
    "parameters": ("P", "#1f77b4"),
    "optimizer": ("O", "#17becf"),
    "gradients": ("G", "#2ca02c"),
    "workspace": ("W", "#7f7f2f"),
    "inputs": ("I", "#bcbd22"),
    "activations": ("A", "#ff7f0e"),
    "recomputed activations": ("R", "#ffbb78"),
    "logits": ("L", "#d62728"),
    "temporaries": ("T", "#9467bd"),
    "fragmentation": (".", "#dddddd"),
}
"""The letter and the colour of each part, in the order they are stacked: what stays lies below."""
_COLUMNS = 48
_ROWS_OF_A_PHASE = 4
_WIDTH, _HEIGHT, _LEFT, _TOP = 1000, 420, 90, 40


def timeline_text(found: Timeline, *, capacity_bytes: int) -> str:
    """A bar for each of some moments of each phase, a letter a part; `|` is what can be had."""
    scale_bytes = max(found.peak.num_bytes, 1) / _COLUMNS
    limit = round(capacity_bytes / scale_bytes)
    lines = []
    for peak in found.peaks:
        inside = [moment for moment in found.moments if moment.phase is peak.phase]
        lines.append(
            f"{_named(peak.phase)}: at most {format_bytes(peak.num_bytes)}, {_largest(peak)}"
        )
        lines += [f"  {_bar(moment, scale_bytes, limit)}" for moment in _spread(inside, peak)]
    used = {name for moment in found.moments for name in moment.parts}
    letters = ", ".join(f"{letter} {name}" for name, (letter, _) in PARTS.items() if name in used)
    return "\n".join([*lines, letters])


def _named(phase: str) -> str:
    return phase.replace("_", " ")


def _largest(moment: Moment) -> str:
    sizes = sorted(moment.parts.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes)


def _spread(inside: Sequence[Moment], peak: Moment) -> Iterator[Moment]:
    """A few moments of a phase in order, its peak among them."""
    step = -(-len(inside) // _ROWS_OF_A_PHASE)
    for first in range(0, len(inside), step):
        several = inside[first : first + step]
        yield peak if peak in several else max(several, key=_in_use)


def _in_use(moment: Moment) -> tuple[int, int]:
    return moment.num_bytes, -moment.parts.get("fragmentation", 0)


def _bar(moment: Moment, scale_bytes: float, limit: int) -> str:
    """Letters as far as each part reaches; the sum of the parts, not each of them, is rounded."""
    bar, reached = "", 0.0
    for name, size in _stacked(moment):
        reached += size / scale_bytes
        bar += PARTS[name][0] * (round(reached) - len(bar))
    if limit <= _COLUMNS:
        bar = f"{bar.ljust(limit)[:limit]}|{bar[limit:]}"
    return bar.ljust(_COLUMNS + 2) + format_bytes(moment.num_bytes)


def _stacked(moment: Moment) -> list[tuple[str, int]]:
    return [(name, moment.parts[name]) for name in PARTS if name in moment.parts]


def timeline_page(found: Timeline, *, title: str, capacity_bytes: int) -> str:
    """A page of HTML with the chart and a table of the phases; it loads nothing."""
    rows = "".join(_row(_cells(peak)) for peak in found.peaks)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>body {{ font: 14px sans-serif; margin: 24px; max-width: 1100px }}
td, th {{ text-align: left; padding: 2px 16px 2px 0 }} svg text {{ font: 12px sans-serif }}
.key {{ display: inline-block; width: 12px; height: 12px; margin: 0 6px 0 14px }}</style></head>
<body><h1>{html.escape(title)}</h1>
{_chart(found, capacity_bytes)}
<p>{_legend(found)}</p>
<table><tr><th>phase</th><th>at most</th><th>of it</th></tr>{rows}</table>
<p>From left to right: {found.num_events} events in order, each a block that is asked for or given
back; their distance is no time. Dashed: what can be had, {format_bytes(capacity_bytes)}.</p>
</body></html>
"""


def _cells(peak: Moment) -> tuple[str, ...]:
    return _named(peak.phase), format_bytes(peak.num_bytes), _largest(peak)


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"


def _legend(found: Timeline) -> str:
    used = {name for moment in found.moments for name in moment.parts}
    return "".join(
        f'<span class="key" style="background:{color}"></span>{name}'
        for name, (_, color) in PARTS.items()
        if name in used
    )


def _chart(found: Timeline, capacity_bytes: int) -> str:
    top_bytes = max(found.peak.num_bytes, capacity_bytes if _is_near(found, capacity_bytes) else 0)
    top_bytes = max(1, round(top_bytes * 1.05))
    pieces = [
        *_areas(found, top_bytes),
        *_phases(found),
        *_axis(top_bytes),
        *_capacity(capacity_bytes, top_bytes),
    ]
    size = f"{_LEFT + _WIDTH} {_TOP + _HEIGHT + 10}"
    return f'<svg viewBox="0 0 {size}" role="img">{"".join(pieces)}</svg>'


def _is_near(found: Timeline, capacity_bytes: int) -> bool:
    """Whether what can be had is no more than twice the peak: drawn further away, all is flat."""
    return capacity_bytes <= 2 * found.peak.num_bytes


def _x(event: int, found: Timeline) -> float:
    return _LEFT + _WIDTH * event / max(1, found.num_events)


def _y(num_bytes: float, top_bytes: int) -> float:
    return _TOP + _HEIGHT * (1 - num_bytes / top_bytes)


def _areas(found: Timeline, top_bytes: int) -> Iterator[str]:
    """One area a part, on top of those before it; steps, since nothing changes between events."""
    lefts = [_x(moment.event, found) for moment in found.moments]
    rights = [*lefts[1:], _x(found.num_events, found)]
    below = [0] * len(lefts)
    for name, (_, color) in PARTS.items():
        above = [
            low + moment.parts.get(name, 0)
            for low, moment in zip(below, found.moments, strict=True)
        ]
        if above != below:
            edges = [
                *_edge(zip(lefts, rights, above, strict=True), top_bytes),
                *reversed(_edge(zip(lefts, rights, below, strict=True), top_bytes)),
            ]
            points = " ".join(edges)
            yield f'<polygon points="{points}" fill="{color}"><title>{name}</title></polygon>'
        below = above


def _edge(steps: Iterable[tuple[float, float, int]], top_bytes: int) -> list[str]:
    """The upper side of some columns, from left to right."""
    return [
        f"{x:.1f},{_y(num_bytes, top_bytes):.1f}"
        for left, right, num_bytes in steps
        for x in (left, right)
    ]


def _phases(found: Timeline) -> Iterator[str]:
    """A line where each phase begins, and its name in one of two heights."""
    first: dict[str, int] = {}
    for moment in found.moments:
        first.setdefault(moment.phase, moment.event)
    for index, (phase, event) in enumerate(first.items()):
        x, y = _x(event, found), 14 + 14 * (index % 2)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{_TOP + _HEIGHT}" stroke="#555"/>'
        yield f'<text x="{x + 4:.1f}" y="{y}">{_named(phase)}</text>'


def _axis(top_bytes: int) -> Iterator[str]:
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = _y(share * top_bytes, top_bytes)
        label = format_bytes(round(share * top_bytes))
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        yield f'<line x1="{_LEFT - 4}" x2="{_LEFT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#555"/>'


def _capacity(capacity_bytes: int, top_bytes: int) -> Iterator[str]:
    if capacity_bytes > top_bytes:
        label = f"what can be had, {format_bytes(capacity_bytes)}, lies above"
        yield f'<text x="{_LEFT + _WIDTH}" y="{_TOP - 2}" text-anchor="end">{label}</text>'
        return
    y = _y(capacity_bytes, top_bytes)
    ends = f'x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"'
    yield f'<line class="capacity" {ends} stroke="#c00" stroke-width="2" stroke-dasharray="8 5"/>'
