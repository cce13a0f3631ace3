"""The time of a training step beside that of a bare loop, of Lightning and of Hugging Face.

    python -m benchmarks.step_speed [--sizes tiny medium large] [--steps N] [--threads N]
                                    [--precision 32-true] [--json] [--output FILE]

One process, the same model, data, batch and precision (`step_loops.py`); every loop trains from the
same weights and must give the same loss in every step, which is checked. They take turns step by
step, in another order each round (`turns.py`), so that what else the machine does meets all of
them. A step's time is from one batch to the next: whatever a loop does in between counts, whatever
it does before its first step and after its last does not. On a GPU a turn is ten steps, since each
ends with waiting for the device.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.step_loops import LOOPS, Job
from benchmarks.step_speed_report import BASE, Measured, report
from benchmarks.turns import Step, Turns
from objectives.language_model import LanguageModel
from search.memory.device import device_here
from search.objective import Split

if TYPE_CHECKING:
    from search.results import ParamValue

_RESULTS = Path(__file__).parent / "results" / "step_speed.md"
BURST = {"cpu": 1, "cuda": 10}
"""Steps of a turn."""
_WARM_UP_STEPS = 3
"""The optimizer's state appears in the first; loops that fetch ahead ask for three at once."""
_TOLERANCE = 1e-5
"""Of the losses, as a share: on a GPU products may be summed in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Sizes of a model and its batch, and how many steps each loop takes."""

    params: Mapping[str, ParamValue]
    num_steps: int


def _size(*, width: int, depth: int, length: int, batch: int, steps: int) -> Size:
    params = {"width": width, "depth": depth, "sequence_length": length, "batch_size": batch}
    return Size(params={**params, "heads": 4}, num_steps=steps)


SIZES: Mapping[str, Mapping[str, Size]] = {
    "cpu": {
        "tiny": _size(width=32, depth=1, length=16, batch=4, steps=800),
        "medium": _size(width=128, depth=2, length=64, batch=8, steps=150),
        "large": _size(width=256, depth=4, length=128, batch=8, steps=80),
    },
    "cuda": {
        "tiny": _size(width=64, depth=2, length=64, batch=8, steps=1000),
        "medium": _size(width=512, depth=8, length=512, batch=16, steps=300),
        "large": _size(width=1024, depth=16, length=1024, batch=16, steps=110),
    },
}
"""Where overhead dominates, where it shows, and where arithmetic dominates."""


def measured(job: Job, *, burst: int) -> dict[str, list[Step]]:
    """The steps of every loop, round by round, without the first few.

    Raises:
        RuntimeError: when two loops do not train the same.
    """
    turns = Turns(list(LOOPS), device=job.device, burst=burst)

    def run(name: str) -> list[Tensor]:
        batches = job.objective.data(job.all_params, Split.TRAIN, seed=0, num_tokens=job.num_tokens)
        return LOOPS[name](job, turns.taken(name, batches))

    found = turns.run({name: partial(run, name) for name in LOOPS})
    losses = {name: [loss.item() for loss in found[name]] for name in LOOPS}
    for name in LOOPS:
        _refuse_other_losses(name, losses[name], losses[BASE], job.num_steps)
    return {name: turns.steps[name][math.ceil(_WARM_UP_STEPS / burst) :] for name in LOOPS}


def _refuse_other_losses(
    name: str, losses: Sequence[float], expected: Sequence[float], num_steps: int
) -> None:
    if len(losses) != num_steps:
        msg = f"{name} took {len(losses)} steps and not {num_steps}"
        raise RuntimeError(msg)
    for step, (loss, other) in enumerate(zip(losses, expected, strict=True)):
        if not abs(loss - other) <= _TOLERANCE * abs(other):
            msg = f"{name} trains something else: its loss is {loss} in step {step}, not {other}"
            raise RuntimeError(msg)


def main() -> None:
    """Measures, prints and keeps the table."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    device, objective = device_here(), LanguageModel(held_out_tokens=8_192)
    found = []
    for name in arguments.sizes:
        size = SIZES[device.kind][name]
        job = Job(
            objective=objective,
            params={**size.params, "precision": arguments.precision},
            num_steps=arguments.steps or size.num_steps,
            device=device.torch_device,
        )
        steps = measured(job, burst=BURST[device.kind])
        found.append(Measured(name=name, job=job, steps=steps))
        print(json.dumps({name: found[-1].ratios()}), file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps({each.name: each.ratios() for each in found}))
        return
    text = report(found, device, command=" ".join(sys.argv[1:]))
    print(text)
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES["cpu"], default=list(SIZES["cpu"]))
    parser.add_argument("--steps", type=int, help="of each loop")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="ratios alone, and no file")
    parser.add_argument("--output", type=Path, default=_RESULTS)
    arguments = parser.parse_args()
    least = 4 * max(BURST.values())
    if arguments.steps is not None and arguments.steps < least:
        parser.error(f"--steps must be at least {least}, for a median of some rounds")
    return arguments


if __name__ == "__main__":
    main()
