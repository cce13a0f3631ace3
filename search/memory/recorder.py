"""Listens to a run on fake tensors, and books every storage from its first use to its death."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from search.memory.composed import gradients_summed_in_place, is_asked_by_the_engine
from search.memory.events import TRAINING_PHASES, Appearances, Event, Part, Phase
from search.memory.formulas import Formula
from search.memory.memo import Memo
from search.memory.scattering import scattered_in_place
from search.memory.target import Call, Freed, Inside, Returned, Target
from search.memory.work import Tally

if TYPE_CHECKING:
    from search.training import TrainingRun

_ADD = torch.ops.aten.add.Tensor
_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operator behind `.item()`
_DEVICE = torch.ops.prim.device.default
_COPY = torch.ops.aten._to_copy.default  # noqa: SLF001 - the operator behind `.to()`
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001
_COMPOSED_HERE = torch._C.DispatchKey.AutogradCPU  # noqa: SLF001 - where a target installs its own
_NO_LOGITS = 2**63
"""More elements than a tensor has: what a loss makes of logits is as large as they are."""
_UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


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
        self._events: list[Event] = []
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._parts: dict[int, Part] = {}
        self._forward: set[int] = set()
        self._operator = ""
        self._least_logits = _NO_LOGITS
        self._zeros: set[int] = set()
        self._sums: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What the operator gives, after all that it made is booked."""
        whole = self._target.replacement(func) is not None
        if torch.is_inference_mode_enabled() and _is_composed(func) and not whole:
            with self:  # what it is made of comes here by itself in any other mode
                return func._op_dk(_composition(func), *args, **(kwargs or {}))  # noqa: SLF001
        return self._booked(func, args, kwargs or {})

    def _booked(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        result = self._result(func, args, kwargs)
        call = Call(operator=func, args=args, kwargs=kwargs, result=result, in_backward=in_backward)
        self._book_call(call)
        if self.tally is not None:
            self.tally.add(call, self._target.holds)
        self._note(call)
        if self.phase is Phase.MODEL_CREATION:
            self._forget_conversions()
        return result

    def _note(self, call: Call) -> None:
        """Remembers what is known of a result beside its memory."""
        adds = call.operator is _ADD and call.in_backward and not torch.is_grad_enabled()
        if adds and is_asked_by_the_engine():
            self._note_sum(call.args, call.result)
        if self._operator.startswith("aten.any."):
            self._zeros.add(_key(call.result))

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = scattered_in_place(func, args)
        if written is not None and self._target.replacement(func) is None:
            return written(*args, **kwargs)
        result = self._memo(func, args, kwargs, self._target.replacement(func))
        if func is _COPY:
            _place(result, kwargs.get("device"))
        return result

    def _read(self, tensor: Tensor) -> float:
        """What `.item()` gives: a finite number that lets a run go on.

        No overflow where the scaler looks for one, nothing that holds of any element, everything
        that is asked of all.
        """
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            with unset_fake_temporarily():  # or it is taken for a fake tensor now and then
                return constant.item()  # type: ignore[no-any-return]
        number = 0 if _key(tensor) in self._zeros else 1
        kind = float if tensor.is_floating_point() else bool if tensor.dtype is torch.bool else int
        return kind(number)

    def _forget_conversions(self) -> None:
        """Lets go of weak references to parameters, with which `Module.to` refuses to work."""
        self._fake.fake_tensor_converter.meta_converter.tensor_memo.clear()

    def _book(self, tensor: object, *, in_backward: bool) -> None:
        if not isinstance(tensor, Tensor) or not self._target.holds(tensor):
            return
        storage = tensor.untyped_storage()
        key, num_bytes = _key(tensor), storage.nbytes()
        if key in self._alive or not num_bytes:
            return
        number = len(self._parts)
        self._parts[number] = self._first_part(number, tensor, in_backward=in_backward)
        self._add(number, num_bytes)
        died = self._on_death(key, number, num_bytes)
        self._alive[key] = (number, weakref.ref(storage, died))

    def _note_sum(self, terms: tuple[Any, ...], result: Tensor) -> None:
        """Two gradients of one tensor, which the autograd engine adds; the first one came first."""
        first, total = (self._alive.get(_key(tensor)) for tensor in (terms[0], result))
        if first and total and torch._prims_common.is_non_overlapping_and_dense_or_false(terms[0]):  # noqa: SLF001
            self._sums[total[0]] = first[0]

    def _book_call(self, call: Call) -> None:
        """Memory inside an operator and its results, in the order the target tells."""
        results, steps = tree_leaves(call.result), list(self._target.inside(call))
        if not any(isinstance(step, Returned) for step in steps):
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
        self._parts[number] = Part.WORKSPACE if block.stays else Part.TEMPORARIES
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
        self._events.append(
            Event(
                phase=self.phase,
                storage=number,
                num_bytes=num_bytes,
                operator=self._operator,
                part=Part.TEMPORARIES,
                formula=formula,
            )
        )

    def _first_part(self, number: int, tensor: Tensor, *, in_backward: bool) -> Part:
        """A guess that `assign` and `_keep_activations` may mend when more is known."""
        if not in_backward and tensor.numel() >= self._least_logits:
            return Part.LOGITS
        if torch.is_grad_enabled() and self.phase in TRAINING_PHASES:
            if in_backward:  # where only checkpointing turns gradients on
                return Part.RECOMPUTED
            self._forward.add(number)
        return Part.TEMPORARIES

    def _keep_activations(self) -> None:
        """What the forward pass left alive when the backward pass begins are activations."""
        self._least_logits = _NO_LOGITS
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

        def before_forward(*_: Any) -> None:
            self._least_logits = _NO_LOGITS

        def after_forward(_: nn.Module, __: Any, result: Any) -> None:
            logits = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.assign(Part.LOGITS, logits)
            self._least_logits = max((each.numel() for each in logits), default=_NO_LOGITS)

        model.register_forward_pre_hook(before_forward)
        model.register_forward_hook(after_forward)
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
        for appears, group in itertools.groupby(final, key=Appearances()):
            members = list(group)
            ordered += members if appears else sorted(members, key=lambda event: event.storage)
        return gradients_summed_in_place(ordered, self._sums)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity, view or not


def _is_stated(block: Inside) -> bool:
    """Whether it is there: at this size, or at others of the same structure."""
    return block.num_bytes > 0 or block.formula is not None


@functools.cache
def _is_composed(operator: Any) -> bool:
    """Whether torch makes it of others. In inference mode it is dispatched whole.

    Source: torch's `torch/_ops.py`, OpOverload.decompose.
    """
    dispatched = operator.namespace != "prim"
    return dispatched and bool(operator.has_kernel_for_dispatch_key(_COMPOSED))


def _composition(operator: Any) -> Any:
    installed = operator.has_kernel_for_dispatch_key(_COMPOSED_HERE)
    return _COMPOSED_HERE if installed else _COMPOSED


def _place(copy: Any, device: torch.device | None) -> None:
    """Puts a copy of a number the host knows where it was sent, which fake tensors forget to do.

    The host then knows it no more. Source: torch's `torch/_subclasses/fake_tensor.py`, which
    copies known numbers for real.
    """
    if device is not None and isinstance(copy, FakeTensor) and copy.fake_device != device:
        copy.fake_device = device
        copy.constant = None
