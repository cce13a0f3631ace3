"""What a benchmark script of Liger-Kernel measures: a forward, a backward, and how often.

Source: linkedin/Liger-Kernel, `benchmark/scripts/utils.py`, `_test_memory` and
`run_memory_benchmark`; older scripts say the same, each for itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from search.memory.allocator import CachingAllocator
from search.memory.cuda import Cuda
from search.memory.events import Event, Phase
from search.memory.recorder import Recorder
from search.memory.trace import record

NUM_REPEATS = 10
"""Each has a peak of its own, reset before it; gradients stay from one to the next."""

_PHASES = Phase.STEP_1, Phase.STEP_2, Phase.EVALUATION
"""Three are run: the first makes the gradients, the second adds to them, all others do as much."""


class Backward(Protocol):
    """Goes backward once, keeping the graph or not."""

    def __call__(self, *, retain: bool) -> None:
        """Adds to the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One measurement of a script, its tensors in place.

    Attributes:
        forward: gives the output.
        backward: takes the output and makes its gradient, before going backward.
        retains_graph: what a full step asks for; "backward" alone always does.
        has_modes: whether the script can measure forward or backward alone; one that cannot
            measures full steps whatever the row's mode.
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], Backward]
    retains_graph: bool = True
    has_modes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A row's configuration, read as the scripts read it."""

    config: Mapping[str, Any]
    version: tuple[int, ...]
    provider: str
    device: torch.device

    def size(self, *names: str) -> int:
        """The first of the names that is given, as a count; swept values come as text."""
        for name in names:
            if self.config.get(name) is not None:
                return int(self.config[name])
        raise KeyError(" or ".join(names))

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensors, such as "torch.bfloat16"; fp32 where none is given."""
        name = str(self.config.get("dtype", "torch.float32"))
        found: torch.dtype = getattr(torch, name.removeprefix("torch."))
        return found

    @property
    def num_tokens(self) -> int:
        """Tokens of a batch."""
        return self.size("BT") if "BT" in self.config else self.size("B") * self.size("T")

    @property
    def bias(self) -> bool:
        """Whether linear layers have a bias."""
        return bool(self.config.get("bias", False))

    def noise(self, *shape: int, trained: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        """Random numbers of the row's type."""
        dtype = dtype or self.dtype
        return torch.randn(*shape, dtype=dtype, device=self.device, requires_grad=trained)

    def linear(self, width: int, num_classes: int) -> nn.Linear:
        """A layer onto a vocabulary, of the row's type."""
        return nn.Linear(width, num_classes, self.bias, self.device, self.dtype)

    def classes(self, num_classes: int, *shape: int) -> Tensor:
        """Random labels."""
        return torch.randint(num_classes, shape, device=self.device)


def of_loss(loss: Tensor) -> Backward:
    """Backward of a number."""

    def backward(*, retain: bool) -> None:
        loss.backward(retain_graph=retain)

    return backward


def of_noise(output: Tensor) -> Backward:
    """Backward of a random gradient, which is held meanwhile."""
    return of_gradient(torch.randn_like(output))(output)


def of_ones(output: Tensor) -> Backward:
    """The same of a gradient of ones."""
    return of_gradient(torch.ones_like(output))(output)


def of_gradient(gradient: Tensor) -> Callable[[Tensor], Backward]:
    """Backward of a gradient that has been there all the time."""

    def prepared(output: Tensor) -> Backward:
        def backward(*, retain: bool) -> None:
            output.backward(gradient, retain_graph=retain)

        return backward

    return prepared


def of_sum(output: Tensor) -> Backward:
    """Backward of the sum of the output."""

    def backward(*, retain: bool) -> None:
        output.sum().backward(retain_graph=retain)

    return backward


def median_peak_bytes(
    build: Callable[[Setting], Bench], setting: Setting, *, mode: str, target: Cuda
) -> int:
    """The median over the repeats of `torch.cuda.max_memory_allocated`.

    A full step has run before in the same process: each script measures speed first, or begins
    with the full mode, so that the workspaces of both threads are there.
    """

    def run(recorder: Recorder) -> Bench:
        bench = build(setting)
        _full(bench)
        del bench
        bench = build(setting)
        step = _step(bench, mode if bench.has_modes else "full")
        for phase in _PHASES:
            recorder.phase = phase
            step()
        return bench

    peaks = _peaks(record(run, target))
    return round(statistics.median(peaks + peaks[-1:] * (NUM_REPEATS - len(_PHASES))))


def _step(bench: Bench, mode: str) -> Callable[[], object]:
    """What is repeated."""
    if mode == "forward":
        return bench.forward
    if mode == "backward":
        backward = bench.backward(bench.forward())
        return lambda: backward(retain=True)
    return lambda: _full(bench)


def _full(bench: Bench) -> None:
    output = bench.forward()
    bench.backward(output)(retain=bench.retains_graph)


def _peaks(events: Iterable[Event]) -> list[int]:
    """The most bytes allocated in each repeat, which is one of the phases."""
    allocator, peaks, phase = CachingAllocator(), list[int](), Phase.MODEL_CREATION
    for event in events:
        if event.num_bytes <= 0:
            allocator.free(event.storage)
            continue
        if event.phase is not phase:
            peaks.append(allocator.statistics().peak_allocated_bytes)
            allocator.reset_peak()
            phase = event.phase
        allocator.malloc(event.storage, event.num_bytes)
    return [*peaks[1:], allocator.statistics().peak_allocated_bytes]
