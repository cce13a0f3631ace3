"""The table of the time of a step: ratios alone, and what the step is held to."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec

import torch

from benchmarks.step_loops import Job
from benchmarks.turns import Ratio, Step, ratio
from search.memory.cuda import Cuda
from search.memory.device import Device
from search.memory.rates import rates_by_data_sheet
from search.memory.speed import utilization as model_flop_utilization
from search.memory.trace import trace

BASE = "bare loop"
OURS = "paretune"
_MOST, _LEAST = 1.03, 1.0
_CLOCKS = {"wall_seconds": "clock", "cpu_seconds": "processor"}
"""Those of a `Step`, and what they are called in the table."""
_TERMS = """\
Each ratio is the median over all rounds, with its interval of 95 % in brackets; above 1 a loop
takes longer than what it is compared with. The losses of every step of the four agreed. No loop
reads its loss. All of them: the objective's own loss, AdamW as torch has it, gradients clipped at 1
and dropped after the step, a learning rate for every step. Lightning: `barebones=True`. Hugging
Face: `report_to=[]`, `logging_strategy="no"`, `save_strategy="no"`, `logging_nan_inf_filter=False`,
`disable_tqdm=True`, no printing callback. Nothing is compiled, batches are made by the loop's own
process, and the heap is as torch and libc leave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured at one size: the steps of every loop, round by round."""

    name: str
    job: Job
    steps: Mapping[str, Sequence[Step]]

    def ratio(self, name: str, base: str, clock: str) -> Ratio:
        """Of two loops, by a clock of a `Step`."""
        return ratio(self.steps[name], self.steps[base], clock)

    @property
    def clock(self) -> str:
        """The one that judges: a processor's own time, which others on the machine count less in.

        That of the host says nothing of a GPU.
        """
        return "wall_seconds" if self.job.device.type == "cuda" else "cpu_seconds"

    def ratios(self) -> dict[str, dict[str, dict[str, float]]]:
        """Each loop over the bare one, and each peer over paretune, by clock."""
        pairs = [(name, base) for base in (BASE, OURS) for name in self.steps]
        return {
            title: {
                f"{name} / {base}": asdict(self.ratio(name, base, clock))
                for name, base in pairs
                if name not in (base, BASE)
            }
            for clock, title in _CLOCKS.items()
        }

    def verdict(self) -> str:
        """What the step is held to, and whether it was: or could be, as far as intervals tell."""
        overhead = self.ratio(OURS, BASE, self.clock)
        others = [name for name in self.steps if name not in (BASE, OURS)]
        peers = {name: self.ratio(name, OURS, self.clock) for name in others}
        held = overhead.median <= _MOST and all(one.median >= _LEAST for one in peers.values())
        possible = overhead.low <= _MOST and all(one.high >= _LEAST for one in peers.values())
        verdict = "held" if held else "not told apart from it" if possible else "**not held**"
        listed = ", ".join(
            f"{name} takes {one.median:.3f} times as long" for name, one in peers.items()
        )
        return f"{self.name}: {overhead.median - 1:+.1%}; {listed}: {verdict}"


def utilization(job: Job, device: Device, seconds: float) -> float | None:
    """The share of a step in which its products would be done at the peak of a GPU's data sheet.

    None on a CPU, and where no peak is known. The products are those of paretune's own trace.

    Source: model FLOP utilization, Chowdhery and others 2022, arXiv 2204.02311, section 4.1.
    """
    rates = rates_by_data_sheet(device) if device.kind == "cuda" else None
    if rates is None or device.architecture is None:
        return None
    work = trace(job.objective, job.all_params, target=Cuda(architecture=device.architecture)).work
    return work and model_flop_utilization(work, rates, steps_per_second=1 / seconds)


def report(found: Sequence[Measured], device: Device, *, command: str) -> str:
    """The page with the table."""
    titles = [f"{what} {base}" for what in _CLOCKS.values() for base in (BASE, OURS)]
    head = ["size", "loop", *(f"by the {title.replace(' ', ', over ', 1)}" for title in titles)]
    head += ["FLOP utilization %"] * (device.kind == "cuda")
    lines = ["# The time of a training step", "", _setting(device, command), "", _TERMS, ""]
    lines += map(_described, found)
    lines += ["", _row(head), _row(["---"] * len(head))]
    lines += [_row(cells) for each in found for cells in _cells(each, device)]
    lines += ["", f"Held to: at most {_MOST - 1:.0%} over the bare loop, and no peer faster."]
    return "\n".join([*lines, *(f"- {each.verdict()}." for each in found)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(found: Measured, device: Device) -> Iterator[list[str]]:
    for name, steps in found.steps.items():
        ratios = [
            "" if name == base else str(found.ratio(name, base, clock))
            for clock in _CLOCKS
            for base in (BASE, OURS)
        ]
        yield [found.name, name, *ratios, *_utilization_cell(found.job, steps, device)]


def _utilization_cell(job: Job, steps: Sequence[Step], device: Device) -> list[str]:
    if device.kind != "cuda":
        return []
    share = utilization(job, device, statistics.median(step.wall_seconds for step in steps))
    return ["not known" if share is None else f"{100 * share:.1f}"]


def _described(found: Measured) -> str:
    sizes = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found.job.params.items())
    steps = found.steps[BASE]
    milliseconds = 1e3 * statistics.median(step.wall_seconds for step in steps)
    return (
        f"- {found.name}: {sizes}; {found.job.num_steps} steps of each loop in {len(steps)} rounds "
        f"that count; a step of the bare loop takes about {milliseconds:.0f} ms"
    )


def _setting(device: Device, command: str) -> str:
    installed = filter(find_spec, ("lightning", "transformers"))
    versions = ", ".join(["", *(f"{name} {version(name)}" for name in installed)])
    return (
        f"`python -m benchmarks.step_speed {command}`".replace(" `", "`")
        + f" on {device.name} ({torch.backends.cpu.get_cpu_capability()}), {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} thread(s), Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}{versions}."
    )
