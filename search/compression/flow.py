"""Which layers' units go to which other layers alone, seen while a model runs on a batch.

Each output of a linear or convolutional layer is followed, operator by operator. Where it goes
through nothing but operators that leave 0 at 0, unit by unit, into another such layer, a unit can
be taken out of both. Everything else is a reason to leave the layer as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_UNIT_BY_UNIT = frozenset(
    {
        *("relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "prelu"),
        *("gelu", "silu", "mish", "tanh", "hardtanh", "hardswish", "softsign", "tanhshrink"),
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("to", "float", "bfloat16", "half", "type", "contiguous", "clone", "detach", "square"),
    }
)
"""Operators, by torch's name, that make 0 of nothing but 0 and mix no units."""
_Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_CALLS = frozenset({"linear", "conv1d", "conv2d", "conv3d"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A layer that reads units: its name, and how many of its inputs each unit stands for."""

    name: str
    inputs_per_unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """A layer whose units only `readers` read, so that some can be taken out."""

    name: str
    readers: tuple[Reader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The layers whose units can be taken out, and why those of each other layer cannot."""

    hidden: tuple[Hidden, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """What a tensor holds along one dimension: each unit of a layer, `repeat` entries in a row."""

    layer: str
    dim: int
    repeat: int = 1


def flow_of(model: nn.Module, run: Callable[[], object]) -> Flow:
    """The flow of units between the layers of a model.

    Args:
        model: what is looked at.
        run: calls the model on a batch, to the end of what is done with its outputs.
    """
    watch = _Watch(model)
    with torch.no_grad(), watch:
        result = run()
    watch.end(result)
    hidden = tuple(
        Hidden(name=name, readers=tuple(watch.readers[name]))
        for name in watch.written
        if name not in watch.refused and watch.readers.get(name)
    )
    found = {each.name for each in hidden}
    refused = {name: watch.refused.get(name, _UNREAD) for name in watch.names if name not in found}
    return Flow(hidden=hidden, refused=refused)


_UNREAD = "no other layer reads its outputs"


class _Watch(TorchFunctionMode):
    """Follows the units of every layer through the calls of torch's functions."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        modules = dict(model.named_modules())
        uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
        self.names = [name for name, each in modules.items() if isinstance(each, _Layer)]
        self._layers = {id(modules[name].weight): name for name in self.names}
        self._modules = modules
        self.written: list[str] = []
        self.readers: dict[str, list[Reader]] = {}
        self.refused: dict[str, str] = {}
        self._units: dict[int, _Units] = {}
        self._kept: list[Tensor] = []
        for name in self.names:
            if uses[id(modules[name].weight)] > 1:
                self.refused[name] = "its weight is shared"
            elif getattr(modules[name], "groups", 1) != 1:
                self.refused[name] = "its channels are in groups"

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._note(getattr(func, "__name__", str(func)), args, kwargs, result)
        return result

    def end(self, result: object) -> None:
        """Whatever is left in the model's own result is read by somebody else."""
        for units in self._units_in([result]):
            self._refuse(units, "its outputs are the model's")

    def _note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        if name in _CALLS:
            self._note_layer(args, kwargs, result)
            return
        found = list(self._units_in([*args, *kwargs.values()]))
        if not found or not any(True for _ in _tensors([result])):
            return  # a shape or a number was asked for
        after = self._after(name, found[0], args, kwargs, result) if len(found) == 1 else None
        if after is None:
            for units in found:
                self._refuse(units, f"its outputs go into {name.strip('_')}")
        else:
            self._keep(result, after)

    def _after(
        self, name: str, units: _Units, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> _Units | None:
        """What the result of an operator holds; None where units cannot be told apart in it."""
        given = args[0] if args else None
        if not isinstance(result, Tensor) or not isinstance(given, Tensor):
            return None
        if id(given) not in self._units:
            return None  # an argument by name, or not the first
        if name in _UNIT_BY_UNIT:
            alike = (
                given.dim() == result.dim() and given.shape[units.dim] == result.shape[units.dim]
            )
            return units if alike else None
        return _flattened(units, given, *args[1:], **kwargs) if name == "flatten" else None

    def _note_layer(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> None:
        given, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
        name = self._layers.get(id(weight))
        spatial = weight.dim() - 2
        units_dim = given.dim() - 1 - spatial
        if (units := self._units.get(id(given))) is not None:
            if name is None or name in self.refused or units.dim != units_dim:
                self._refuse(units, "a layer reads its outputs that cannot be cut")
            else:
                reader = Reader(name=name, inputs_per_unit=units.repeat)
                self.readers.setdefault(units.layer, []).append(reader)
        if name is None:
            return
        if name in self.written:
            self.refused.setdefault(name, "it is used twice")
        else:
            self.written.append(name)
        self._keep(result, _Units(layer=name, dim=result.dim() - 1 - spatial))

    def _keep(self, tensor: Tensor, units: _Units) -> None:
        self._units[id(tensor)] = units
        self._kept.append(tensor)  # so that no other takes over its identity

    def _units_in(self, values: Sequence[Any]) -> Iterator[_Units]:
        found = (self._units.get(id(tensor)) for tensor in _tensors(values))
        yield from (units for units in found if units is not None)

    def _refuse(self, units: _Units, reason: str) -> None:
        self.refused.setdefault(units.layer, reason)


def _flattened(
    units: _Units, given: Tensor, start_dim: int = 0, end_dim: int = -1
) -> _Units | None:
    """Units where dimensions of a tensor became one: those that follow them are theirs."""
    start, end = start_dim % given.dim(), end_dim % given.dim()
    if units.dim < start:
        return units
    if units.dim > end:
        return _Units(layer=units.layer, dim=units.dim - (end - start), repeat=units.repeat)
    if units.dim > start:
        return None
    inside = given.shape[start + 1 : end + 1].numel()
    return _Units(layer=units.layer, dim=start, repeat=units.repeat * inside)


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, Mapping):
            yield from _tensors(list(value.values()))
