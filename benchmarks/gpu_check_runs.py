"""How `gpu_check.py` predicts a run: the same code drives a trace and a GPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_check_configurations import Configuration
from benchmarks.objectives_measured import (
    convolutional_net,
    multilayer_perceptron,
    transformer_encoder,
)
from objectives.language_model import LanguageModel
from search.memory.allocator import simulate
from search.memory.allocator_settings import allocator_settings_of
from search.memory.cuda import Cuda
from search.memory.events import Event, Phase
from search.memory.recorder import Recorder
from search.memory.trace import record
from search.objective import Objective, Split
from search.training import TrainingRun

if TYPE_CHECKING:
    from search.objective import Batch

NUM_STEPS = 2
_HELD_OUT_BATCHES = 2
_MOST_TRIES = 20
_LARGEST_BATCH = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The peaks of a run as torch would print them; `below` and `above` as cuDNN may have it."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    below_bytes: int
    above_bytes: int
    events: tuple[Event, ...]


@functools.cache
def _objective(kind: str) -> Objective:
    made: Mapping[str, Callable[[], Objective]] = {
        "language model": LanguageModel,
        "encoder": transformer_encoder,
        "convolutional net": convolutional_net,
        "perceptron": multilayer_perceptron,
    }
    return made[kind]()


def drive(
    configuration: Configuration,
    device: torch.device,
    batches: Iterator[Batch],
    entering: Callable[[Phase, TrainingRun], None] = lambda _, __: None,
) -> TrainingRun:
    """A new model, two optimizer steps and an evaluation on a device.

    A step that a loss scale left out for an overflow is not counted: there is none in a trace.

    Args:
        configuration: what to run.
        device: a GPU, or its stand-in in a trace.
        batches: micro-batches without end.
        entering: told of each phase before it begins.
    """
    objective, params = _objective(configuration.kind), configuration.params
    held_out = (objective.batch(params, Split.HELD_OUT) for _ in range(_HELD_OUT_BATCHES))
    run = TrainingRun(
        objective, params, num_tokens=2**62, device=device, batches=batches, held_out=held_out
    )
    with _attention(configuration.backend):
        for tries in range(1, _MOST_TRIES + 1):
            entering(Phase.STEP_1 if tries == 1 else Phase.STEP_2, run)
            run.step()
            if tries - run.overflow_steps == NUM_STEPS:
                break
        entering(Phase.EVALUATION, run)
        run.evaluate()
    return run


def _attention(backend: SDPBackend | None) -> AbstractContextManager[None]:
    return nullcontext() if backend is None else sdpa_kernel(backend)


def zeros(configuration: Configuration) -> Iterator[Batch]:
    """Micro-batches of the right shapes, for ever."""
    objective = _objective(configuration.kind)
    while True:
        yield objective.batch(configuration.params, Split.TRAIN)


def drawn(configuration: Configuration) -> Iterator[Batch]:
    """The objective's own micro-batches for one step, again and again."""
    objective, params = _objective(configuration.kind), configuration.params
    num_tokens = int(params["batch_size"]) * objective.tokens_per_sample(params)
    data = objective.data(params, Split.TRAIN, seed=0, num_tokens=num_tokens)
    return itertools.cycle(list(data))


def traced_events(configuration: Configuration, target: Cuda) -> list[Event]:
    """What the run would ask of a GPU, in order."""

    def run(recorder: Recorder) -> TrainingRun:
        def entering(phase: Phase, run: TrainingRun) -> None:
            if phase is Phase.STEP_1:
                recorder.watch(run)
            recorder.phase = phase

        return drive(configuration, target.device, zeros(configuration), entering)

    return record(run, target)


def predicted(configuration: Configuration, architecture: tuple[int, int]) -> Predicted:
    """The run's peaks on a GPU of an architecture, under the allocator's settings of here."""
    target = Cuda(architecture=architecture)
    events = traced_events(configuration, target)
    found = simulate(sizes(events), settings=allocator_settings_of())
    unsure = target.uncertain_bytes
    return Predicted(
        requested_bytes=found.peak_requested_bytes,
        allocated_bytes=found.peak_allocated_bytes,
        reserved_bytes=found.peak_reserved_bytes,
        below_bytes=unsure.below_bytes,
        above_bytes=unsure.above_bytes,
        events=tuple(events),
    )


def sizes(events: Iterable[Event]) -> Iterator[tuple[int, int]]:
    """As the simulated allocator takes them."""
    return ((event.storage, event.num_bytes) for event in events)


def largest_batch(holds: Callable[[int], bool]) -> int:
    """The largest batch that holds, or 0: doubled until one does not, then by bisection."""
    above = 1
    while above < _LARGEST_BATCH and holds(above):
        above *= 2
    return largest(holds, above // 2, above)


def largest(holds: Callable[[int], bool], below: int, above: int) -> int:
    """By bisection, the largest number from `below` to under `above` that holds.

    `below` is taken to hold and `above` not to.
    """
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below


def predicted_to_fit(
    configuration: Configuration,
    architecture: tuple[int, int],
    *,
    total_bytes: int,
    fraction: float,
) -> bool:
    """Whether the simulated allocator serves all of the run, as under torch's memory fraction."""
    settings = replace(allocator_settings_of(), per_process_memory_fraction=fraction)
    events = traced_events(configuration, Cuda(architecture=architecture))
    found = simulate(sizes(events), settings=settings, total_bytes=total_bytes)
    return found.out_of_memory is None
