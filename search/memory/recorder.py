"""Listens to a run on fake tensors, and books every storage from its first use to its death."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves

from search.memory.composed import gradients_summed_in_place, is_asked_by_the_engine
from search.memory.events import TRAINING_PHASES, Event, Part, Phase
from search.memory.formulas import Formula
from search.memory.memo import Memo
from search.memory.operators import Operator
from search.memory.scattering import scattered_in_place
from search.memory.target import Call, Freed, Inside, Returned, Target
from search.memory.uniform import Uniform
from search.memory.work import Tally
from search.optimizers import parts

if TYPE_CHECKING:
    from search.training import TrainingRun

_ADD = torch.ops.aten.add.Tensor
_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operator behind `.item()`
_DEVICE = torch.ops.prim.device.default
_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001 - the operator behind `.to()`
_NO_LOGITS = 2**63
"""More elements than a tensor has: what a loss makes of logits is as large as they are."""
_UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
_CREATION = Phase.MODEL_CREATION
_TEMPORARIES, _WORKSPACE = Part.TEMPORARIES, Part.WORKSPACE  # members of an enumeration are slow
_STORAGE = attrgetter("storage")
_Booked = tuple[Phase, int, int, str, Formula | None]
"""An event before its part is known."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Books each storage of the target once, when an operator first returns it, until it dies."""

    def __init__(self, fake: FakeTensorMode, target: Target) -> None:
        """Listens where it is entered, inside `fake`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = Phase.MODEL_CREATION
        self.tally: Tally | None = None  # counts what operators compute while one is set
        self._fake = fake
        self._memo = Memo(fake)
        self._target = target
        self._events: list[_Booked] = []
        self._operators: dict[int, Operator] = {}
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._parts: dict[int, Part] = {}
        self._forward: set[int] = set()
        self._operator = ""
        self._least_logits = _NO_LOGITS
        self._zeros: set[int] = set()
        self._uniform = Uniform()
        self._sums: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What the operator gives, after all that it made is booked."""
        if any(kind is not FakeTensor for kind in types) and _has_parts(types):
            return NotImplemented  # it comes again in operators on the parts
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0]._fake_device  # noqa: SLF001 - asked at every turn, twice as often as all else
        if func is _READ:
            return self._read(args[0])
        operator = self._operators.get(id(func)) or self._known(func)
        if operator.composition is not None and torch.is_inference_mode_enabled():
            with self:  # what it is made of comes here by itself in any other mode
                return func._op_dk(operator.composition, *args, **(kwargs or {}))  # noqa: SLF001
        return self._booked(operator, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch wraps each call to keep its compiler out, but a trace lets none in.

        See `search.memory.compiled`, compiled_code_refused.
        """
        return False

    def _known(self, func: Any) -> Operator:
        operator = Operator.of(func, self._target.replacement(func))
        self._operators[id(func)] = operator
        return operator

    def _booked(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func, self._operator = operator.itself, operator.name
        if func is _UNSCALE:
            self._zeros.add(_key(args[1]))
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - as torch.utils.checkpoint asks it
        if in_backward:
            self._keep_activations()
        result = self._result(operator, args, kwargs)
        call = Call(operator=func, args=args, kwargs=kwargs, result=result, in_backward=in_backward)
        self._book_call(call)
        if self.tally is not None:
            self.tally.add(call, self._target.holds)
        if func is _ADD and in_backward:
            self._note_sum(call)
        if operator.is_any:
            self._zeros.add(_key(result))
        self._follow_values(operator, args, result)
        if self.phase is _CREATION:
            self._forget_conversions()
        return result

    def _result(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func = operator.itself
        if operator.is_scattering:
            written = scattered_in_place(func, args)
            if written is not None:
                return written(*args, **kwargs)
        result = self._memo(func, args, kwargs, operator.replacement)
        if func is _COPY:
            _place(result, kwargs.get("device"))
        return result

    def _follow_values(self, operator: Operator, args: tuple[Any, ...], result: Any) -> None:
        if not args or not isinstance(args[0], Tensor):
            return
        if operator.is_writing:
            self._uniform.forget(args[0])
        else:
            self._uniform.follow(operator.itself, args, result)

    def holds_zeros(self, tensors: Iterable[Tensor]) -> None:
        """Says that these are zeros: questions about their values are answered so."""
        self._uniform.begin(tensors, 0.0)

    def _read(self, tensor: Tensor) -> float:
        """What `.item()` gives: the number where it is known, else one that lets a run go on.

        No overflow where the scaler looks for one, nothing that holds of any element, everything
        that is asked of all.
        """
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            with torch._C._DisableTorchDispatch():  # or it is taken for a fake tensor now and then  # noqa: SLF001
                return constant.item()  # type: ignore[no-any-return]
        known = self._uniform.value(tensor)
        number = known if known is not None else 0 if _key(tensor) in self._zeros else 1
        kind = float if tensor.is_floating_point() else bool if tensor.dtype is torch.bool else int
        return kind(number)

    def _forget_conversions(self) -> None:
        """Lets go of weak references to parameters, with which `Module.to` refuses to work."""
        self._fake.fake_tensor_converter.meta_converter.tensor_memo.clear()

    def _book(self, tensor: object, *, in_backward: bool) -> None:
        if not isinstance(tensor, Tensor) or not self._target.holds(tensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - as in _key
        if key in self._alive:
            return
        num_bytes = storage.nbytes()
        if not num_bytes:
            return
        number = len(self._parts)
        self._parts[number] = self._first_part(number, tensor, in_backward=in_backward)
        self._add(number, num_bytes)
        died = self._on_death(key, number, num_bytes)
        self._alive[key] = (number, weakref.ref(storage, died))

    def resized(self, tensor: Tensor) -> None:
        """Books that a storage was given other room in place, which no operator tells."""
        known = self._alive.get(_key(tensor))
        if known is not None and known[1].__callback__ is not None:
            known[1].__callback__(known[1])
        self._book(tensor, in_backward=False)

    def _note_sum(self, call: Call) -> None:
        """Two gradients of one tensor, where the engine adds them; the first one came first."""
        if torch.is_grad_enabled() or not is_asked_by_the_engine():
            return
        gradient = call.args[0]
        first, total = (self._alive.get(_key(tensor)) for tensor in (gradient, call.result))
        if first and total and torch._prims_common.is_non_overlapping_and_dense_or_false(gradient):  # noqa: SLF001
            self._sums[total[0]] = first[0]

    def _book_call(self, call: Call) -> None:
        """Memory inside an operator and its results, in the order the target tells."""
        results, steps = _leaves(call.result), list(self._target.inside(call))
        if steps and not any(isinstance(step, Returned) for step in steps):
            steps = [*map(Returned, range(len(results))), *steps]
        going: list[tuple[int, Inside]] = []
        for step in steps:
            if isinstance(step, Returned):
                self._book(results[step.place], in_backward=call.in_backward)
            elif isinstance(step, Freed):
                for block in filter(_is_stated, step.blocks):
                    index = next(i for i, (_, kept) in enumerate(going) if kept is block)
                    self._end(*going.pop(index))
            elif _is_stated(step):
                number = self._begin(step)
                going += [] if step.stays else [(number, step)]
        for result in results:
            self._book(result, in_backward=call.in_backward)
        for number, block in going:
            self._end(number, block)

    def _begin(self, block: Inside) -> int:
        number = len(self._parts)
        self._parts[number] = _WORKSPACE if block.stays else _TEMPORARIES
        self._add(number, block.num_bytes, block.formula)
        return number

    def _end(self, number: int, block: Inside) -> None:
        self._add(number, -block.num_bytes, block.formula)

    def _on_death(self, key: int, number: int, num_bytes: int) -> Callable[[object], None]:
        def died(_: object) -> None:
            self._alive.pop(key, None)
            self._zeros.discard(key)
            self._forward.discard(number)
            self._add(number, -num_bytes)

        return died

    def _add(self, number: int, num_bytes: int, formula: Formula | None = None) -> None:
        self._events.append((self.phase, number, num_bytes, self._operator, formula))

    def _first_part(self, number: int, tensor: Tensor, *, in_backward: bool) -> Part:
        """A guess that `assign` and `_keep_activations` may mend when more is known."""
        if not in_backward and tensor.numel() >= self._least_logits:
            return Part.LOGITS
        if torch.is_grad_enabled() and self.phase in TRAINING_PHASES:
            if in_backward:  # where only checkpointing turns gradients on
                return Part.RECOMPUTED
            self._forward.add(number)
        return _TEMPORARIES

    def _keep_activations(self) -> None:
        """What the forward pass left alive when the backward pass begins are activations."""
        self._least_logits = _NO_LOGITS
        for number in self._forward:
            if self._parts[number] is _TEMPORARIES:
                self._parts[number] = Part.ACTIVATIONS
        self._forward.clear()

    def watch(self, run: TrainingRun) -> None:
        """Knows the parts of a run from now on."""
        model = run.model
        for each in filter(None, (model, run.teacher)):
            self.assign(Part.PARAMETERS, (*each.parameters(), *each.buffers()))

        def before_update(*_: Any) -> None:
            self.assign(Part.GRADIENTS, (param.grad for param in model.parameters()))

        def after_update(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self.assign(Part.OPTIMIZER, tree_leaves(list(optimizer.state.values())))

        def before_forward(*_: Any) -> None:
            self._least_logits = _NO_LOGITS

        def after_forward(_: nn.Module, __: Any, result: Any) -> None:
            logits = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.assign(Part.LOGITS, logits)
            self._least_logits = max((each.numel() for each in logits), default=_NO_LOGITS)

        model.register_forward_pre_hook(before_forward)
        model.register_forward_hook(after_forward)
        for optimizer in itertools.chain.from_iterable(map(parts, run.optimizers)):
            optimizer.register_step_pre_hook(before_update)
            optimizer.register_step_post_hook(after_update)

    def assign(self, part: Part, tensors: Any) -> None:
        """Says what the storages of these tensors are for; other values are passed over."""
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - nobody else is to hear of it
            for tensor in _plain_tensors(tensors):
                alive = self._alive.get(_key(tensor))
                if alive is not None:
                    self._parts[alive[0]] = part

    def events(self) -> list[Event]:
        """The events so far, each with its final part.

        What goes between two appearances goes in the order it came: autocast's cache of weights
        is emptied in the order of their addresses, which no two runs share.
        """
        parts, seen = self._parts, set[int]()
        ordered: list[Event] = []
        going: list[Event] = []
        for phase, storage, num_bytes, operator, formula in self._events:
            event = Event(phase, storage, num_bytes, operator, parts[storage], formula)
            if storage in seen:
                going.append(event)
                continue
            seen.add(storage)
            if going:
                ordered += sorted(going, key=_STORAGE)
                going = []
            ordered.append(event)
        ordered += sorted(going, key=_STORAGE)
        return gradients_summed_in_place(ordered, self._sums)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity, view or not


def _leaves(result: Any) -> list[Any]:
    """A result's parts, nested as far as operators nest them."""
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in _leaves(part)]
    return [result]


def _has_parts(kinds: Iterable[type]) -> bool:
    """Whether one of these classes of tensors is made of others, such as quantized ones are."""
    return any(is_traceable_wrapper_subclass_type(kind) for kind in kinds)


def _plain_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the values; the parts of one that is made of others."""
    for value in values:
        if is_traceable_wrapper_subclass(value):
            names, _ = value.__tensor_flatten__()
            yield from _plain_tensors(getattr(value, name) for name in names)
        elif isinstance(value, Tensor):
            yield value


def _is_stated(block: Inside) -> bool:
    """Whether it is there: at this size, or at others of the same structure."""
    return block.num_bytes > 0 or block.formula is not None


def _place(copy: Any, device: torch.device | None) -> None:
    """Puts a copy of a number the host knows where it was sent, which fake tensors forget to do.

    The host then knows it no more. Source: torch's `torch/_subclasses/fake_tensor.py`, which
    copies known numbers for real.
    """
    if device is not None and isinstance(copy, FakeTensor) and copy.fake_device != device:
        copy.fake_device = device
        copy.constant = None
