"""How fast memory is judged: five figures, each held to a bound, in one table.

    python -m benchmarks.memory_speed [--output FILE]

Each figure is measured in a process of its own. Times are of the processor, all threads added, so
that others on the machine count little; the time on the clock stands beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from objectives.language_model import LanguageModel
from search.memory.allocator import simulate
from search.memory.cuda import Cuda
from search.memory.device import ByteEstimate
from search.memory.machine import GpuMemory
from search.memory.prediction import Predictor
from search.memory.program import Box, EventProgram
from search.memory.program_fit import fit_program
from search.memory.trace import Phase, trace

_RESULTS = Path(__file__).parent / "results" / "memory_speed.md"
_A100 = (8, 0)
_BLOCK_BYTES = 512
_NUM_POINTS, _NUM_ROUNDED = 1_000_000, 100_000
_GPT2 = {"width": 768, "depth": 12, "heads": 12, "precision": "bf16-mixed"}
_LLAMA = {"width": 4096, "depth": 32, "heads": 32, "precision": "bf16-mixed"}
_GPT2_VALUES, _LLAMA_VALUES = 50_257, 32_000
_LEFT_OUT = 5
"""Which configuration of a plan is asked for when its structure is known."""


class Sized(LanguageModel):
    """The language model with as many values as a published one has tokens."""

    def __init__(self, num_values: int) -> None:
        """Keeps little held out: evaluation is traced on windows of one size in any case."""
        super().__init__(held_out_tokens=2_000)
        self.num_values = num_values

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        """The decoder, its table of values and its last layer made larger."""
        decoder = super().model(params)
        width = int(params["width"])
        decoder.embedding = nn.Embedding(self.num_values, width)
        decoder.head = nn.Linear(width, self.num_values, bias=False)
        return decoder


def judged(_: Path) -> dict[str, float]:
    """Configurations a second on one core, and how far the bound lies from what is exact."""
    objective = Sized(_GPT2_VALUES)
    box = Box(micro_batch_sizes=range(8, 33), lengths=range(512, 1025, 128))
    program = fit_program(
        lambda point: trace(objective, _at(_GPT2, *point[:2]), target=Cuda(architecture=_A100)), box
    )
    if not isinstance(program, EventProgram):
        raise RuntimeError(program.reason)  # noqa: TRY004 - the kind says that there is none
    generator = np.random.default_rng(0)
    points = np.stack([generator.choice(np.array(axis), _NUM_POINTS) for axis in box.axes], axis=1)
    few = points[:_NUM_ROUNDED]
    bound_seconds, bound = _seconds(lambda: program.peak_bytes(points))
    exact_seconds, exact = _seconds(
        lambda: program.rounded_peak_bytes(few, unit_bytes=_BLOCK_BYTES)
    )
    return {
        "bounds_per_second": _NUM_POINTS / bound_seconds,
        "exact_per_second": _NUM_ROUNDED / exact_seconds,
        "error_percent": 100 * float(np.abs(1 - bound[:_NUM_ROUNDED] / exact).max()),
    }


def simulated(_: Path) -> dict[str, float]:
    """Seconds to simulate the allocator over two steps of GPT-2 124M."""
    traced = trace(Sized(_GPT2_VALUES), _at(_GPT2, 8, 1024), target=Cuda(architecture=_A100))
    stream = [
        (event.storage, event.num_bytes)
        for event in traced.events
        if event.phase is not Phase.EVALUATION
    ]
    return {"seconds": _seconds(lambda: simulate(stream))[0]}


def gpt2(folder: Path) -> dict[str, float]:
    """A first structure of GPT-2 124M: every micro-batch and length of a plan predicted."""
    return _planned(folder, _GPT2_VALUES, _space(_GPT2, range(8, 33, 4), (512, 1024)))


def llama(folder: Path) -> dict[str, float]:
    """The same for a model with the dimensions of Llama-2 7B."""
    return _planned(folder, _LLAMA_VALUES, _space(_LLAMA, range(2, 15, 2), (2048, 4096)))


def cached(folder: Path) -> dict[str, float]:
    """A point of the structure of `gpt2`, which that did not ask for, in a process of its own."""
    space = _space(_GPT2, range(8, 33, 4), (512, 1024))
    predict = Predictor(Sized(_GPT2_VALUES), _machine(), folder, space)
    _seconds(lambda: predict.length)  # imports what a batch needs
    return {"seconds": _seconds(lambda: predict(space[_LEFT_OUT]))[0]}


def _planned(folder: Path, num_values: int, space: list[dict[str, Any]]) -> dict[str, float]:
    predict = Predictor(Sized(num_values), _machine(), folder, space)
    asked = [params for index, params in enumerate(space) if index != _LEFT_OUT]
    clock = time.perf_counter()
    seconds, _ = _seconds(lambda: [predict(params) for params in asked])
    return {
        "seconds": seconds,
        "clock_seconds": time.perf_counter() - clock,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _machine() -> GpuMemory:
    context = ByteEstimate(low_bytes=0, expected_bytes=0, high_bytes=0, source="left out")
    return GpuMemory(architecture=_A100, context=context)


def _space(
    model: Mapping[str, Any], batches: range, lengths: tuple[int, ...]
) -> list[dict[str, Any]]:
    return [_at(model, batch, length) for length in lengths for batch in batches]


def _at(model: Mapping[str, Any], batch: int, length: int) -> dict[str, Any]:
    return {**model, "batch_size": batch, "micro_batch_size": batch, "sequence_length": length}


def _seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    before = time.process_time()
    result = act()
    return time.process_time() - before, result


_FIGURES = {each.__name__: each for each in (judged, simulated, gpt2, llama, cached)}


def main() -> None:
    """Measures each figure in a process of its own and writes the table."""
    arguments = _arguments()
    if arguments.figure:
        torch.set_num_threads(1)
        print(json.dumps(_FIGURES[arguments.figure](arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {name: _measured(name, folder) for name in _FIGURES}
    text = "\n".join([*_heading(), *_rows(found), ""])
    print(text)
    arguments.output.write_text(text, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=_RESULTS)
    parser.add_argument("--figure", choices=_FIGURES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _measured(name: str, folder: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory_speed"]
    done = subprocess.run(  # noqa: S603 - this very file
        [*command, "--figure", name, "--folder", folder],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _heading() -> list[str]:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    setting = (
        f"`python -m benchmarks.memory_speed` on {platform.machine()}, {os.cpu_count()} cores, "
        f"load averages {load}; Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}. Seconds are of the processor, all threads of one process added; "
        "other work on the machine slows them through its caches."
    )
    models = (
        "GPT-2 124M and Llama-2 7B stand for the language model of `objectives/` with their "
        "width, depth, heads and vocabulary, in bf16-mixed with AdamW, on an A100. A structure "
        "is planned for 14 configurations of micro-batch and length; importing torch is left out."
    )
    return ["# How fast memory is judged", "", setting, "", models, ""]


def _rows(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    judged, gpt2, llama = found["judged"], found["gpt2"], found["llama"]
    rows = [
        ("bounds a second, one core", f"{judged['bounds_per_second']:,.0f}", "1,000,000 at least"),
        ("exact to 512 B, a second", f"{judged['exact_per_second']:,.0f}", "2,000 at least"),
        ("largest error of the bound", f"{judged['error_percent']:.4f} %", "0.1 %"),
        ("allocator, two steps of GPT-2", _milliseconds(found["simulated"]), "20 ms"),
        ("first structure, GPT-2 124M", _on_clock(gpt2), "6 s on 2 cores"),
        ("first structure, Llama-2 7B", _on_clock(llama), "30 s"),
        ("its host memory", f"{llama['peak_bytes'] / 1e9:.2f} GB", "3 GB"),
        ("a cached structure", _milliseconds(found["cached"]), "50 ms"),
    ]
    head = ["| figure | found | held to |", "|---|---|---|"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]


def _milliseconds(figure: Mapping[str, float]) -> str:
    return f"{1e3 * figure['seconds']:.0f} ms"


def _on_clock(figure: Mapping[str, float]) -> str:
    return f"{figure['seconds']:.1f} s ({figure['clock_seconds']:.1f} s on the clock)"


if __name__ == "__main__":
    main()
