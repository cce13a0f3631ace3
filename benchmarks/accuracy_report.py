"""The table of predicted beside measured memory, as Markdown."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from benchmarks.accuracy_figures import RISK, Figures
from benchmarks.accuracy_rows import Judged, LeftOut
from search.memory.contexts import published_context
from search.memory.device import device_here
from search.units import MIB

_HEAD = (
    "group", "rows", "median error %", "95 % within %", "largest %", "under by 2 % and more",
    "fitting, but out of memory", "out of memory, but fitting", f"above high at risk {RISK}",
)  # fmt: skip
HELD_TO: Mapping[str, str] = MappingProxyType(
    {
        "liger": "allocated: median <= 0.5 %, largest 3 %",
        "vramcalc": "the same",
        "litgpt_thunder": "the same",
        "torchtune_lora": "the same",
        "gpumemnet_mlp": "whole device: median <= 0.5 %, largest 4 %",
        "gpumemnet_transformer": "whole device: median <= 0.7 %, 95 % of rows within 4 %, at most "
        "3 % of rows under by 2 % and more; no run out of memory called fitting, at most 3 % of "
        "the others called not fitting",
        "cpu": "resident: median <= 2 %, largest 6 %",
    }
)
_STATISTICS = """\
Grade A rows compare allocated bytes as torch counts them; the `gpumemnet` groups the whole device,
context included; `cpu` what the resident set grew by. Errors are of rows that did not run out of
memory, without their sign. `above high` counts runs that needed more than the interval's upper end
with a margin from all other groups: at most 2 % are accepted. Nothing is fitted to a row but the
context, one constant."""
_MECHANISM = """\
## What is known of the misses

- Which of equally large free blocks the allocator takes hangs on their addresses, which the driver
  chooses. A Transformer's prediction may so lie one block of the size of its embedding too high or
  too low. New segments below earlier ones are expected; both orders are run, and the interval
  carries the difference.
- The gradient of a bias is a sum over all rows, whose partial sums take up to 108 MiB on an A100
  (`search/memory/cuda_reductions.py`); without them Transformers with blocks of 4 MiB and more
  were predicted 30 to 150 MiB too low.
- The mask of a dropout is there before its result; the other way round was up to a block off.
- One context stands for all processes. What differs between them is the kernels they load."""
_LIGER = """\
## What is not known of the Liger rows

- Two rows, `distill_jsd_loss` of release 0.4.2, are predicted 5,046 MiB and 0.98 MiB a token too
  low. The second is two more tensors of fp32 logits; the first is five tables of the vocabulary by
  the teacher's width in bf16. Later revisions of the script, which the rebuilt step follows, hold
  neither; the one that made these rows was not at hand."""


def report(
    figures: Mapping[str, Figures],
    judged: Sequence[Judged],
    left_out: Sequence[LeftOut],
    *,
    command: str,
) -> str:
    """The whole text: where it ran, the figures, what is known, all rows, and those left out."""
    sections = [
        "# Predicted and measured memory",
        f"`{command}` {_place()}",
        _STATISTICS,
        _table(_HEAD, [_cells(name, each) for name, each in figures.items()]),
        _held_to(figures),
    ]
    if any(name.startswith("gpumemnet") for name in figures):
        sections += [_context(judged), _MECHANISM]
    if "liger" in figures:
        sections.append(_LIGER)
    sections += [_rows(judged), _omitted(left_out)] if left_out else [_rows(judged)]
    return "\n\n".join(sections)


def _place() -> str:
    return (
        f"on {device_here().name} ({torch.backends.cpu.get_cpu_capability()}), "
        f"{os.cpu_count()} cores, no GPU used, Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}."
    )


def _cells(name: str, each: Figures) -> tuple[object, ...]:
    went_on = each.rows - each.out_of_memory
    rows = f"{each.rows}, {each.out_of_memory} out of memory" if each.out_of_memory else each.rows
    return (
        name,
        rows,
        f"{each.median_error_percent:.2f}",
        f"{each.p95_error_percent:.2f}",
        f"{each.max_error_percent:.2f}",
        f"{100 * each.under_by_2_percent_share:.1f} %",
        f"{each.called_fitting_but_oom} of {each.out_of_memory}",
        f"{each.called_oom_but_fitting} of {went_on}",
        f"{each.failures} ({100 * each.failures / each.rows:.1f} %)",
    )


def _held_to(figures: Mapping[str, Figures]) -> str:
    lines = [f"- {name}: {HELD_TO[name]}" for name in figures if name in HELD_TO]
    return "\n".join(["Held to:", "", *lines])


def _context(judged: Sequence[Judged]) -> str:
    """What the rows run here say of the one constant."""
    context = published_context((8, 0))
    text = (
        f"The context of an A100: {context.expected_bytes / MIB:,.0f} MiB, "
        f"{context.low_bytes / MIB:,.0f} to {context.high_bytes / MIB:,.0f}"
    )
    rows = [row for row in judged if row.group == "gpumemnet_mlp" and not row.ran_out]
    if not rows:
        return f"{text}."
    beyond = sorted(row.measured_bytes - row.expected_bytes for row in rows)
    middle = context.expected_bytes + beyond[len(beyond) // 2]
    return f"{text}; the median over the MLP rows run here: {middle / MIB:,.0f} MiB."


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _rows(judged: Sequence[Judged]) -> str:
    head = ("row", "measured MiB", "predicted MiB", "error %", "interval MiB")
    ordered = sorted(judged, key=lambda row: (row.group, row.name))
    groups = dict.fromkeys(row.group for row in ordered)
    parts = ["## Rows"]
    for group in groups:
        members = [row for row in ordered if row.group == group]
        parts += [f"### {group}", _table(head, [_row(row) for row in members])]
    return "\n\n".join(parts)


def _row(row: Judged) -> tuple[str, ...]:
    low, high = row.low_bytes / MIB, row.high_bytes / MIB
    verdict = "" if row.fits is not False else ", called not fitting"
    return (
        row.name,
        "out of memory" if row.ran_out else f"{row.measured_bytes / MIB:,.1f}",
        f"{row.expected_bytes / MIB:,.1f}{verdict}",
        "" if row.ran_out else f"{row.error_percent:+.2f}",
        f"{low:,.1f} to {high:,.1f}" if low < high else "",
    )


def _omitted(left_out: Sequence[LeftOut]) -> str:
    counts = Counter((row.group, row.reason) for row in left_out)
    names: dict[tuple[str, str], list[str]] = {}
    for row in left_out:
        names.setdefault((row.group, row.reason), []).append(row.name)
    rows = [(*key, counts[key], ", ".join(names[key])) for key in sorted(counts)]
    return "## Rows left out\n\n" + _table(("group", "reason", "rows", "which"), rows)
