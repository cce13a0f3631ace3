"""The memory of a configuration, event by event, without running it.

The training step itself runs on fake tensors: shapes and lifetimes, no numbers. Left out: buffers
of fixed size inside kernels, and the allocator.
"""

from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from search.memory.scratch import scratch_bytes
from search.objective import Split
from search.training import TrainingParams, TrainingRun, micro_batch_size

if TYPE_CHECKING:
    from search.objective import Batch, Objective
    from search.results import Params

_MICRO_BATCHES = 2
"""The first micro-batch creates the gradients, the second adds to them; all others repeat it."""
_HELD_OUT_BATCHES = 2
_CPU = torch.device("cpu")
_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operator behind `.item()`
_DEVICE = torch.ops.prim.device.default
_UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


class Phase(StrEnum):
    """What a run is doing. The optimizer's state appears in step 1, the steady peak in step 2."""

    MODEL_CREATION = "model_creation"
    STEP_1 = "step_1"
    STEP_2 = "step_2"
    EVALUATION = "evaluation"


class Part(StrEnum):
    """What a piece of memory is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    INPUTS = "inputs"
    ACTIVATIONS = "activations"
    RECOMPUTED = "recomputed activations"
    TEMPORARIES = "temporaries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A storage that appears (`num_bytes` above 0) or goes (below 0), and the operator that did it.

    A storage that goes names the operator that ran last before.
    """

    phase: Phase
    storage: int
    num_bytes: int
    operator: str
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Every event of a run in order, and the most bytes that were alive at once.

    `parts` say what those bytes were for, `alive_at_peak` in pieces of which sizes; the sum of
    each is `peak_bytes`.
    """

    events: tuple[Event, ...]
    peak_bytes: int
    peak_phase: Phase
    peak_bytes_by_phase: Mapping[Phase, int]
    parts: Mapping[str, int]
    alive_at_peak: tuple[int, ...]


def trace(objective: Objective, params: Params, *, num_steps: int = 2) -> Trace:
    """The memory of creating a model, `num_steps` optimizer steps and an evaluation.

    The objective's own `batch` stands for its data. Of a step's micro-batches two are run, and
    the inputs of the others are held beside them.
    """
    if not 1 <= num_steps <= 2:
        msg = f"num_steps must be 1 or 2, found {num_steps}"
        raise ValueError(msg)
    with _undisturbed():
        return _trace_of(_recorded_events(objective, params, num_steps))


def _recorded_events(objective: Objective, params: Params, num_steps: int) -> list[Event]:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = _Recorder(fake)
    with fake, recorder:
        run = TrainingRun(
            objective,
            _traced_params(params),
            num_tokens=2**62,
            device=_CPU,
            batches=_training_batches(objective, params, recorder),
            held_out=_held_out_batches(objective, params, recorder),
        )
        recorder.watch(run)
        for phase in (Phase.STEP_1, Phase.STEP_2)[:num_steps]:
            recorder.phase = phase
            run.step()
        recorder.phase = Phase.EVALUATION
        run.evaluate()
    return recorder.events()


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


def _num_micro_batches(params: Params) -> int:
    return TrainingParams.of(params).batch_size // micro_batch_size(params)


def _traced_params(params: Params) -> Params:
    samples = micro_batch_size(params)
    count = min(_num_micro_batches(params), _MICRO_BATCHES)
    return {**params, "micro_batch_size": samples, "batch_size": count * samples}


class _HeldBatch(dict[str, Tensor]):
    """A batch that keeps alive the inputs of the micro-batches that are not run."""

    untraced: tuple[Tensor, ...] = ()


def _training_batches(objective: Objective, params: Params, recorder: _Recorder) -> Iterator[Batch]:
    num_traced = min(_num_micro_batches(params), _MICRO_BATCHES)
    num_untraced = _num_micro_batches(params) - num_traced
    for index in itertools.count():
        batch = _HeldBatch(objective.batch(params, Split.TRAIN))
        if num_untraced and index % num_traced == 0:
            batch.untraced = tuple(
                torch.empty((num_untraced, *tensor.shape), dtype=tensor.dtype)
                for tensor in batch.values()
            )
        recorder.assign(Part.INPUTS, (*batch.values(), *batch.untraced))
        yield batch
        del batch


def _held_out_batches(objective: Objective, params: Params, recorder: _Recorder) -> Iterator[Batch]:
    for _ in range(_HELD_OUT_BATCHES):
        batch = objective.batch(params, Split.HELD_OUT)
        recorder.assign(Part.INPUTS, batch.values())
        yield batch
        del batch


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Books each storage once, when an operator first returns it, until it dies."""

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = Phase.MODEL_CREATION
        self._fake = fake
        self._events: list[Event] = []
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._parts: dict[int, Part] = {}
        self._forward: set[int] = set()
        self._operator = ""
        self._zeros: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _READ:
            return self._read(args[0])
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked at every turn: a third of the time of a trace
        self._operator = str(func)
        if func is _UNSCALE:
            self._zeros.add(_key(args[1]))
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - as torch.utils.checkpoint asks it
        if in_backward:
            self._keep_activations()
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._book(tensor, in_backward=in_backward)
        self._book_scratch(scratch_bytes(func, args))
        if self._operator.startswith("aten.any."):
            self._zeros.add(_key(result))
        if self.phase is Phase.MODEL_CREATION:
            self._forget_conversions()
        return result

    def _read(self, tensor: Tensor) -> float:
        """What `.item()` gives: a finite number that lets a run go on.

        No overflow where the scaler looks for one, nothing that holds of any element, everything
        that is asked of all.
        """
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            return constant.item()  # type: ignore[no-any-return]
        number = 0 if _key(tensor) in self._zeros else 1
        kind = float if tensor.is_floating_point() else bool if tensor.dtype is torch.bool else int
        return kind(number)

    def _forget_conversions(self) -> None:
        """Lets go of weak references to parameters, with which `Module.to` refuses to work."""
        self._fake.fake_tensor_converter.meta_converter.tensor_memo.clear()

    def _book(self, tensor: Tensor, *, in_backward: bool) -> None:
        storage = tensor.untyped_storage()
        key, num_bytes = _key(tensor), storage.nbytes()
        if key in self._alive or not num_bytes:
            return
        number = len(self._parts)
        self._parts[number] = self._first_part(number, in_backward=in_backward)
        self._add(number, num_bytes)
        died = self._on_death(key, number, num_bytes)
        self._alive[key] = (number, weakref.ref(storage, died))

    def _book_scratch(self, num_bytes: int) -> None:
        """Memory inside an operator: there beside its results, and gone with its end."""
        if num_bytes:
            number = len(self._parts)
            self._parts[number] = Part.TEMPORARIES
            self._add(number, num_bytes)
            self._add(number, -num_bytes)

    def _on_death(self, key: int, number: int, num_bytes: int) -> Callable[[object], None]:
        def died(_: object) -> None:
            self._alive.pop(key, None)
            self._zeros.discard(key)
            self._forward.discard(number)
            self._add(number, -num_bytes)

        return died

    def _add(self, number: int, num_bytes: int) -> None:
        self._events.append(
            Event(
                phase=self.phase,
                storage=number,
                num_bytes=num_bytes,
                operator=self._operator,
                part=Part.TEMPORARIES,
            )
        )

    def _first_part(self, number: int, *, in_backward: bool) -> Part:
        """A guess that `assign` and `_keep_activations` may mend when more is known."""
        if torch.is_grad_enabled() and self.phase in (Phase.STEP_1, Phase.STEP_2):
            if in_backward:  # where only checkpointing turns gradients on
                return Part.RECOMPUTED
            self._forward.add(number)
        return Part.TEMPORARIES

    def _keep_activations(self) -> None:
        """What the forward pass left alive when the backward pass begins are activations."""
        for number in self._forward:
            if self._parts[number] is Part.TEMPORARIES:
                self._parts[number] = Part.ACTIVATIONS
        self._forward.clear()

    def watch(self, run: TrainingRun) -> None:
        """Knows the parts of a run from now on."""
        model = run.model
        self.assign(Part.PARAMETERS, (*model.parameters(), *model.buffers()))

        def before_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            params = (param for group in optimizer.param_groups for param in group["params"])
            self.assign(Part.GRADIENTS, (param.grad for param in params))

        def after_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self.assign(Part.OPTIMIZER, tree_leaves(list(optimizer.state.values())))

        run.optimizer.register_step_pre_hook(before_update)
        run.optimizer.register_step_post_hook(after_update)

    def assign(self, part: Part, tensors: Any) -> None:
        """Says what the storages of these tensors are for; other values are passed over."""
        for tensor in tensors:
            if isinstance(tensor, Tensor) and _key(tensor) in self._alive:
                self._parts[self._alive[_key(tensor)][0]] = part

    def events(self) -> list[Event]:
        """The events so far, each with its final part.

        What goes between two appearances goes in the order it came: autocast's cache of weights
        is emptied in the order of their addresses, which no two runs share.
        """
        final = (replace(event, part=self._parts[event.storage]) for event in self._events)
        ordered: list[Event] = []
        for goes, group in itertools.groupby(final, key=lambda event: event.num_bytes < 0):
            members = list(group)
            ordered += sorted(members, key=lambda event: event.storage) if goes else members
        return ordered


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity, view or not


def _trace_of(events: list[Event]) -> Trace:
    alive_bytes, peak_bytes, peak_index = 0, 0, -1
    by_phase = dict.fromkeys(Phase, 0)
    for index, event in enumerate(events):
        alive_bytes += event.num_bytes
        by_phase[event.phase] = max(by_phase[event.phase], alive_bytes)
        if alive_bytes > peak_bytes:
            peak_bytes, peak_index = alive_bytes, index
    alive = _alive_after(events[: peak_index + 1])
    return Trace(
        events=tuple(events),
        peak_bytes=peak_bytes,
        peak_phase=events[peak_index].phase,
        peak_bytes_by_phase=by_phase,
        parts=_parts(alive),
        alive_at_peak=tuple(event.num_bytes for event in alive),
    )


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
