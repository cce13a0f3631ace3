"""The dimensions there are: the training step's and the objective's, their types, defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from search.errors import InputError
from search.results import Params, ParamValue
from search.sweep.words import closest, either, found

if TYPE_CHECKING:
    from search.objective import Objective

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "nothing",
}


def training_group() -> type:
    """The dataclass whose fields are the dimensions of the training step."""
    from search.training_params import TrainingParams

    return TrainingParams


def objective_group(objective: type[Objective] | Objective) -> type:
    """The dataclass whose fields are the dimensions of an objective.

    Raises:
        InputError: when it is none, or its types cannot be read.
    """
    parameters = objective.parameters
    if not (isinstance(parameters, type) and is_dataclass(parameters)):
        msg = f"its 'parameters' must be a dataclass, found {found(str(parameters))}"
        raise InputError(msg)
    try:
        get_type_hints(parameters)
    except NameError as error:
        msg = f"the types of its 'parameters' cannot be read: {error} (import it at run time)"
        raise InputError(msg) from error
    return parameters


def dimension_types(group: type) -> dict[str, Any]:
    """The declared type of each dimension of a group, by name."""
    hints = get_type_hints(group)
    return {field.name: hints[field.name] for field in fields(group)}


def default_params(objective: type[Objective] | Objective) -> Params:
    """The default of every dimension that has one, as plain values."""
    return {**group_defaults(training_group()), **group_defaults(objective_group(objective))}


def group_defaults(group: type) -> dict[str, ParamValue]:
    """The default of every dimension of a group that has one, as plain values."""
    values = ((field.name, _default(field)) for field in fields(group))
    return {name: value for name, value in values if value is not MISSING}


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return _plain(field.default_factory())
    return _plain(field.default)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def build(group: type, params: Mapping[str, ParamValue]) -> None:
    """Builds the dataclass of a group, for its own check of the values.

    Raises:
        ValueError: from its `__post_init__`, on values that do not go together.
    """
    types = dimension_types(group)
    group(**{name: _rich(types[name], params[name]) for name in types if name in params})


def _rich(declared: Any, value: ParamValue) -> Any:
    enums = [kind for kind in alternatives(declared) if _is_enum(kind)]
    return enums[0](value) if enums and value is not None else value


def alternatives(declared: Any) -> tuple[Any, ...]:
    """The members of a union; any other type alone."""
    if get_origin(declared) in (Union, UnionType):
        return get_args(declared)
    return (declared,)


def is_plain(declared: Any) -> bool:
    """Whether a type is made of numbers, text, true and false, nothing and named choices alone."""
    kinds = alternatives(declared)
    return all(kind in _WORDS or get_origin(kind) is Literal for kind in kinds)


def takes_numbers(declared: Any) -> bool:
    """Whether a range of numbers makes sense for a dimension of this type."""
    return int in alternatives(declared) or float in alternatives(declared)


def plain_value(declared: Any, value: object) -> ParamValue:
    """A value of the file as a dimension of this type keeps it: 1 as 1.0, `fp32` as `32-true`.

    Raises:
        ValueError: saying what the dimension takes and what was found.
    """
    kinds = alternatives(declared)
    for kind in kinds:
        fits, plain = _as_kind(kind, value)
        if fits:
            return plain
    msg = f"must be {_expected(declared)}, found {found(value)}{_hint(declared, value)}"
    raise ValueError(msg)


def _as_kind(kind: Any, value: Any) -> tuple[bool, ParamValue]:
    """Whether a value is of a kind, and how it is kept."""
    if kind in (str, bool, NoneType):
        return type(value) is kind, value
    if kind is float:
        real = type(value) in (int, float) and math.isfinite(value)
        return real, float(value) if real else None
    if kind is int:
        whole = type(value) is int or (type(value) is float and value.is_integer())
        return whole, int(value) if whole else None
    if get_origin(kind) is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(kind)), value
    return _as_member(kind, value)


def _as_member(kind: Any, value: Any) -> tuple[bool, ParamValue]:
    if not _is_enum(kind):
        return False, None
    try:
        return True, kind(value).value
    except ValueError:
        return False, None


def _expected(declared: Any) -> str:
    return either([word for kind in alternatives(declared) for word in _kind_words(kind)])


def _kind_words(kind: Any) -> list[str]:
    if kind in _WORDS:
        return [_WORDS[kind]]
    return [found(name) for name in _members(kind)] or [f"a {getattr(kind, '__name__', kind)}"]


def _members(kind: Any) -> list[ParamValue]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [member.value for member in kind] if _is_enum(kind) else []


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _hint(declared: Any, value: object) -> str:
    named = [kind for kind in alternatives(declared) if kind not in _WORDS]
    close = closest(value, [str(name) for kind in named for name in _members(kind)])
    return f" (did you mean {close[0]!r}?)" if close else ""
