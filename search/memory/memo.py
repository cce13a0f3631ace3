"""What operators give on fake tensors, remembered by the kinds of their arguments.

A model repeats its layers, and a step its micro-batches: most operators meet arguments of shapes
that they have met before. torch remembers them too, but asks so much of each tensor that it takes
most of the time of a trace. Left out: operators whose results hang on values, or that may change
shapes in place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, get_default_dtype, is_inference_mode_enabled
from torch._C import _DisableTorchDispatch, _dispatch_keys, _set_throw_on_mutable_data_ptr
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_make_subclass = Tensor._make_subclass  # noqa: SLF001 - as torch makes fake tensors
_PLAIN = frozenset(
    {bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Values that are equal only where an operator does the same with them, if their types are."""
_META = torch.device("meta")
_NEVER = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_MOST_KEPT = 50_000
"""Kinds of calls; a model has hundreds. Past that, all are forgotten."""
_Arguments = tuple[Any, ...]
_Maker = Callable[[FakeTensorMode, _Arguments], Any]
_makers: dict[Hashable, _Maker | None] = {}
"""What is known in this process: weights are of the same shapes in every trace of a structure."""


class _UnknownKindError(Exception):
    """Raised for an argument that does not tell what comes back."""


class Memo:
    """Calls operators inside a fake mode, or gives what they gave to such arguments before."""

    def __init__(self, fake: FakeTensorMode) -> None:
        """Begins with what earlier traces of this process have seen."""
        self._fake = fake
        if len(_makers) > _MOST_KEPT:
            _makers.clear()

    def __call__(
        self,
        operator: Any,
        args: _Arguments,
        kwargs: Mapping[str, Any],
        run: Callable[..., Any] | None = None,
    ) -> Any:
        """The operator's results.

        Args:
            operator: what is asked for.
            args: its arguments by place.
            kwargs: its arguments by name.
            run: what is called instead of it: a function that hangs on its arguments alone.
        """
        key = self._key(operator, run, args, kwargs)
        run = run or operator
        if key is None:
            return run(*args, **kwargs)
        maker = _makers.get(key)
        if maker is not None:
            return maker(self._fake, args)
        result = run(*args, **kwargs)
        if key not in _makers:
            _makers[key] = _maker(self._fake, args, kwargs, result)
        return result

    def _key(
        self, operator: Any, run: Any, args: _Arguments, kwargs: Mapping[str, Any]
    ) -> Hashable:
        """All that decides the results; None where something else does too."""
        known = _operators.get(id(operator)) or _known(operator)
        if not known.is_pure:
            return None
        if known.is_foreach:
            args = _without_numbers(args)
        try:
            kinds = self._kinds(args)
            named = (*kwargs, self._kinds(kwargs.values())) if kwargs else None
        except _UnknownKindError:
            return None
        # an operator itself is slow to hash, and these two settings decide what it makes
        return known, run, kinds, named, get_default_dtype(), is_inference_mode_enabled()

    def _kinds(self, values: Iterable[Any]) -> tuple[Hashable, ...]:
        kinds: list[Hashable] = []
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self._fake or value.constant is not None:
                    raise _UnknownKindError
                kinds.append(_tensor_kind(value))
            elif value is None:
                kinds.append(None)
            elif kind in _PLAIN:
                kinds.append((kind, value))
            elif kind is list or kind is tuple:
                kinds.append(self._kinds(value))
            else:
                raise _UnknownKindError
        return tuple(kinds)


def _without_numbers(args: _Arguments) -> _Arguments:
    """How many numbers there are instead of which: a foreach operator computes with them alone."""
    return tuple(
        len(value) if isinstance(value, list) and value and type(value[0]) is float else value
        for value in args
    )


def _tensor_kind(tensor: FakeTensor) -> tuple[Any, ...]:
    return (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor._fake_device,  # noqa: SLF001 - what the property returns, which is slow
        _dispatch_keys(tensor).raw_repr(),  # conjugated, made in inference...
    )


class _Operator:
    """What is known of an operator; each is itself alone, which makes it quick to look up."""

    __slots__ = ("is_foreach", "is_pure", "itself")

    def __init__(self, operator: Any) -> None:
        """`is_pure`: results hang on the kinds of arguments alone, as torch says of its own."""
        tags = operator.tags
        self.itself = operator
        self.is_pure = operator.namespace == "aten" and not any(tag in tags for tag in _NEVER)
        self.is_foreach = operator.name().startswith("aten::_foreach_")


_operators: dict[int, _Operator] = {}
"""By the identity of an operator, which is kept, so that no other takes it over."""


def _known(operator: Any) -> _Operator:
    known = _Operator(operator)
    _operators[id(operator)] = known
    return known


class _Recipe(NamedTuple):
    """All that makes a fake tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, tensor: FakeTensor) -> _Recipe:
        """How to make one of the same kind; what torch keeps with a tensor is copied from it."""
        shape, stride, offset, dtype, device, _ = _tensor_kind(tensor)
        attributes = {**vars(tensor), "fake_mode": None}
        return cls(tuple(shape), stride, offset, dtype, device, attributes)

    def alone(self, fake: FakeTensorMode) -> FakeTensor:
        """One with a storage of its own."""
        with _DisableTorchDispatch():  # as fake tensors are made
            element = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=_META)
        return self._tensor(fake, element)

    def view(self, fake: FakeTensorMode, tensor: FakeTensor) -> FakeTensor:
        """One that lies in the storage of another."""
        storage = tensor.untyped_storage()
        with _DisableTorchDispatch():  # the same
            element = torch.empty(0, dtype=self.dtype, device=_META)
            element.set_(storage, self.offset, self.shape, self.stride)
        return self._tensor(fake, element)

    def _tensor(self, fake: FakeTensorMode, element: Tensor) -> FakeTensor:
        """Source: torch's `torch/_subclasses/fake_tensor.py`, FakeTensor.__new__."""
        made: FakeTensor = _make_subclass(
            FakeTensor,
            element,
            False,  # noqa: FBT003 - requires no gradient
            dispatch_device=True,
            device_for_backend_keys=self.device,
        )
        if fake._allow_unsafe_data_ptr_access:  # noqa: SLF001
            torch._C._set_warn_deprecated_on_mutable_data_ptr(made)  # noqa: SLF001
        else:
            _set_throw_on_mutable_data_ptr(made)
        attributes = made.__dict__
        attributes.update(self.attributes)
        attributes["fake_mode"] = fake
        return made


def _maker(
    fake: FakeTensorMode, args: _Arguments, kwargs: Mapping[str, Any], result: Any
) -> _Maker | None:
    """What gives such a result again for other arguments of the same kinds; None where unsure."""
    given = list(_tensors((*args, *kwargs.values())))
    if type(result) not in (tuple, list):
        return _maker_of_one(fake, args, given, result)
    made = [_maker_of_one(fake, args, given, one) for one in result]
    makers = [maker for maker in made if maker is not None]
    if len(makers) < len(made) or _share(given, result):
        return None
    kind = type(result)
    return lambda fake, args: kind([make(fake, args) for make in makers])


def _maker_of_one(
    fake: FakeTensorMode, args: _Arguments, given: list[FakeTensor], result: Any
) -> _Maker | None:
    """Gives an argument itself, a view of the only tensor among them, or a tensor of its own."""
    if result is None or type(result) is int:
        return lambda *_: result
    if not isinstance(result, FakeTensor) or result.constant is not None:
        return None
    if args and args[0] is result:
        return lambda _, args: args[0]
    recipe = _Recipe.of(result)
    if _storage(result) not in map(_storage, given):
        alike = _alike(recipe.alone(fake), result)
        return (lambda fake, _: recipe.alone(fake)) if alike else None
    if len(given) > 1 or not args or given[0] is not args[0]:
        return None
    alike = _alike(recipe.view(fake, given[0]), result)
    return (lambda fake, args: recipe.view(fake, args[0])) if alike else None


def _tensors(values: Iterable[Any]) -> Iterator[FakeTensor]:
    """The fake tensors, nested as far as operators nest them."""
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity


def _share(given: list[FakeTensor], results: Iterable[Any]) -> bool:
    """Whether some results lie in one storage that is no argument's."""
    own = [_storage(one) for one in results if isinstance(one, Tensor)]
    own = [storage for storage in own if storage not in set(map(_storage, given))]
    return len(set(own)) < len(own)


def _alike(made: FakeTensor, result: FakeTensor) -> bool:
    same_size = made.untyped_storage().nbytes() == result.untyped_storage().nbytes()
    same_kind = _tensor_kind(made) == _tensor_kind(result)
    return same_size and same_kind and made.requires_grad == result.requires_grad
