"""The memory of a configuration, event by event, without running it.

The training step itself runs on fake tensors: shapes and lifetimes, no numbers. Left out: buffers
of fixed size inside kernels, and the allocator.
"""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from search.compression.params import teacher_of
from search.compression.serving import model_call, served_batch
from search.memory.batches import (
    MAX_MICRO_BATCHES,
    LastBatches,
    held_out_batches,
    num_micro_batches,
    traced_params,
    training_batches,
    training_phases,
)
from search.memory.compiled import compiled_code_refused, refuse_compiled_parts
from search.memory.composed import bias_added_in_place
from search.memory.cuda_uncertainty import total
from search.memory.events import Event, Part, Phase
from search.memory.host_data import HostData
from search.memory.recorder import Recorder
from search.memory.target import Cpu, Target, Unsure
from search.memory.work import Tally, Work
from search.objective import Split
from search.optimizers import load
from search.training import TrainingRun
from search.training_params import Precision, TrainingParams

if TYPE_CHECKING:
    from search.compression.params import Deployment, Teacher
    from search.objective import Objective
    from search.results import Params

__all__ = ["MAX_MICRO_BATCHES", "Event", "Part", "Phase", "Trace", "record", "trace", "trace_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Every event of a run in order, and the most bytes that were alive at once.

    `parts` say what those bytes were for, `alive_at_peak` in pieces of which sizes; the sum of
    each is `peak_bytes`. `work` is that of the last full step, None where it was not counted.
    `uncertain` are the calls of a library that keeps its needs to itself. `all_events` hold those
    of blocks too that are empty at this size.
    """

    events: tuple[Event, ...]
    all_events: tuple[Event, ...]
    peak_bytes: int
    peak_phase: Phase
    peak_bytes_by_phase: Mapping[Phase, int]
    parts: Mapping[str, int]
    alive_at_peak: tuple[int, ...]
    work: Work | None = None
    uncertain: tuple[Unsure, ...] = ()

    @property
    def unsure(self) -> Unsure:
        """How far the peak may lie below and above what is booked."""
        return total(self.uncertain)


def trace(
    objective: Objective,
    params: Params,
    *,
    num_steps: int = 2,
    target: Target | None = None,
    last: LastBatches | None = None,
    deployment: Deployment | None = None,
) -> Trace:
    """The memory of creating a model, `num_steps` optimizer steps and an evaluation.

    The objective's own `batch` stands for its data; where it has a `usual_batch`, the steps are
    run on that, and one more on `batch`. Of a step's micro-batches two are run, and the inputs of
    the others are held beside them. `target` is the CPU by default, `last` that all batches are of
    the same size. With a `deployment` its teacher takes part, and the model serves at the end, as
    large as it was trained.
    """
    if not 1 <= num_steps <= 2:
        msg = f"num_steps must be 1 or 2, found {num_steps}"
        raise ValueError(msg)
    training = TrainingParams.of(params)
    load(training.optimizer, offload=training.optimizer_offload)
    target, listening = _across_ranks(target or Cpu(), training.world_size)
    last = last or LastBatches()
    phases = training_phases(objective, params, num_steps=num_steps, last=last)
    tally = Tally()

    def run(recorder: Recorder) -> TrainingRun:
        with listening(recorder, target.device):
            return _run(
                objective,
                params,
                recorder,
                tally,
                device=target.device,
                phases=phases,
                last=last,
                deployment=deployment,
            )

    traced = trace_of(_record_all(run, target))
    return replace(traced, work=_work(tally, params), uncertain=target.uncertain)


def _across_ranks(
    target: Target, world_size: int
) -> tuple[Target, Callable[[Recorder, torch.device], AbstractContextManager[object]]]:
    """The target of one of several ranks, and what must be entered to hear what that one does."""
    if world_size == 1:
        return target, lambda *_: nullcontext()
    from search.memory.across_ranks import AcrossRanks, Listening

    return AcrossRanks(target, world_size), Listening


def _work(tally: Tally, params: Params) -> Work:
    num_traced = min(num_micro_batches(params), MAX_MICRO_BATCHES)
    return tally.work(
        num_traced=num_traced,
        num_waiting=num_micro_batches(params) - num_traced,
        tf32=TrainingParams.of(params).precision is Precision.TF32,
    )


def record(run: Callable[[Recorder], object], target: Target) -> list[Event]:
    """The events of any code on fake tensors, which moves its tensors to `target.device`.

    What it returns is kept alive to the end of the recording. It may set the recorder's `phase`.

    Raises:
        UnpredictableError: when it calls code that torch compiles.
    """
    return _without_empty(_record_all(run, target))


def _without_empty(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.num_bytes]


def _record_all(run: Callable[[Recorder], object], target: Target) -> list[Event]:
    copies = mock.patch.object(FakeTensor, "__deepcopy__", _deep_copy, create=True)
    with _undisturbed(), copies, bias_added_in_place(), target.installed():
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        recorder = Recorder(fake, target)
        with fake, recorder, HostData(), compiled_code_refused():
            kept = run(recorder)
            events = recorder.events()
            del kept
    return events


def _deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Tensor:
    """A copy on the same fake mode, as `nn.Parameter` copies itself: torch would copy the mode."""
    if id(tensor) not in memo:
        copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            copy = nn.Parameter(copy.detach(), tensor.requires_grad)
        memo[id(tensor)] = copy
    found: Tensor = memo[id(tensor)]
    return found


def _run(
    objective: Objective,
    params: Params,
    recorder: Recorder,
    tally: Tally,
    *,
    device: torch.device,
    phases: Sequence[Phase],
    last: LastBatches,
    deployment: Deployment | None,
) -> TrainingRun:
    run = TrainingRun(
        objective,
        traced_params(params),
        num_tokens=2**62,
        device=device,
        batches=training_batches(objective, params, recorder, phases=phases, last=last),
        held_out=held_out_batches(objective, params, recorder, last=last),
        teacher=_untrained(deployment),
    )
    refuse_compiled_parts(run.model)
    recorder.watch(run)
    full = [phase for phase in phases if phase is not Phase.LAST_BATCH]
    for phase in phases:
        recorder.phase = phase
        recorder.tally = tally if phase is full[-1] else None
        run.step()
    recorder.tally = None
    recorder.phase = Phase.EVALUATION
    run.evaluate()
    if deployment is not None:
        recorder.phase = Phase.SERVING
        _serve(run, recorder, num_samples=deployment.serving_batch_size)
    return run


def _untrained(deployment: Deployment | None) -> Teacher | None:
    """The teacher without its weights, which are no matter of sizes."""
    teacher = teacher_of(deployment)
    return teacher and replace(teacher, weights="")


def _serve(run: TrainingRun, recorder: Recorder, *, num_samples: int) -> None:
    run.let_go()
    held_out = run.objective.batch(run.params, Split.HELD_OUT)
    batch = served_batch(held_out, num_samples)
    del held_out
    recorder.assign(Part.INPUTS, batch.values())
    with run.serving():
        model_call(run.objective, run.model, run.on_device(batch))()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leaves the caller's generators and settings as they were; no garbage is collected inside.

    Cycles then live to the end, whenever the collector would have run: the same events each time.
    """
    precision, collecting = torch.get_float32_matmul_precision(), gc.isenabled()
    gc.disable()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        if collecting:
            gc.enable()


def trace_of(all_events: list[Event]) -> Trace:
    """The trace that consists of these events."""
    events = _without_empty(all_events)
    alive_bytes, peak_bytes, peak_index = 0, 0, -1
    by_phase = dict.fromkeys(Phase, 0)
    for phase, group in itertools.groupby(enumerate(events), key=_phase):
        most_bytes = by_phase[phase]
        for index, event in group:
            alive_bytes += event.num_bytes
            most_bytes = max(most_bytes, alive_bytes)
            if alive_bytes > peak_bytes:
                peak_bytes, peak_index = alive_bytes, index
        by_phase[phase] = most_bytes
    alive = _alive_after(events[: peak_index + 1])
    return Trace(
        events=tuple(events),
        all_events=tuple(all_events),
        peak_bytes=peak_bytes,
        peak_phase=events[peak_index].phase,
        peak_bytes_by_phase=by_phase,
        parts=_parts(alive),
        alive_at_peak=tuple(event.num_bytes for event in alive),
    )


def _phase(numbered: tuple[int, Event]) -> Phase:
    return numbered[1].phase


def _alive_after(events: list[Event]) -> list[Event]:
    """The appearances without an end, in order."""
    alive: dict[int, Event] = {}
    for event in events:
        if event.num_bytes > 0:
            alive[event.storage] = event
        else:
            del alive[event.storage]
    return list(alive.values())


def _parts(alive: list[Event]) -> dict[str, int]:
    parts = dict.fromkeys(map(str, Part), 0)
    for event in alive:
        parts[event.part] += event.num_bytes
    return {part: num_bytes for part, num_bytes in parts.items() if num_bytes}
