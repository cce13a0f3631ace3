"""Faults of a file's dimensions one by one: their names, and the values each of them is given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search.errors import Fault
from search.sweep.dimensions import plain_value, takes_numbers
from search.sweep.words import repeated, unknown

_NOT_COMPILED = (
    "is no dimension: no trial is compiled, since the memory of what torch.compile makes cannot be "
    "predicted (leave it out, and compile what is picked)"
)
_EXCLUDED = {"compile": _NOT_COMPILED, "torch_compile": _NOT_COMPILED}
"""What one may well look for, and why it is not there."""


def name_faults(
    space: Mapping[str, Any], fixed: Mapping[str, Any], known: Sequence[str]
) -> Iterator[Fault]:
    """Dimensions nobody knows, and those that are both searched and fixed."""
    for section, names in (("space", space), ("fixed", fixed)):
        for name in names:
            if name not in known:
                message = _EXCLUDED.get(name) or unknown(name, "dimension", known)
                yield Fault(place=f"{section}.{name}", message=message)
            elif section == "fixed" and name in space:
                message = "is searched in 'space' too (leave it out of one of the two)"
                yield Fault(place=f"fixed.{name}", message=message)


def dimension_faults(
    space: Mapping[str, Any], fixed: Mapping[str, Any], types: Mapping[str, Any]
) -> Iterator[Fault]:
    """Values that the type of their dimension does not take; of the dimensions in `types` alone."""
    for name, declared in types.items():
        if name in space:
            yield from value_faults(f"space.{name}", space[name], declared)
        if name in fixed and is_scalar(fixed[name]) and (why := refusal(declared, fixed[name])):
            yield Fault(place=f"fixed.{name}", message=why)


def value_faults(place: str, given: object, declared: Any) -> Iterator[Fault]:
    """Values of one searched dimension that its type does not take, or that are there twice."""
    if isinstance(given, Mapping):
        yield from _range_faults(place, given, declared)
        return
    if not isinstance(given, list):
        return
    values = [value for value in given if is_scalar(value)]
    for value in values:
        if why := refusal(declared, value):
            yield Fault(place=place, message=why)
    if twice := repeated(_typed(values, declared), values):
        yield Fault(place=place, message=twice)


def _range_faults(place: str, given: Mapping[str, object], declared: Any) -> Iterator[Fault]:
    if not takes_numbers(declared):
        message = f"{refusal(declared, given)} (list the choices, such as [...])"
        yield Fault(place=place, message=message)
        return
    for bound in ("low", "high", "step"):
        value = given.get(bound)
        if _is_number(value) and (message := refusal(declared, value)):
            yield Fault(place=f"{place}.{bound}", message=message)


def refusal(declared: Any, value: object) -> str:
    """Why a type does not take a value; empty when it does."""
    try:
        plain_value(declared, value)
    except ValueError as error:
        return str(error)
    return ""


def is_scalar(value: object) -> bool:
    """Whether a value is neither a list nor a mapping, nor infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, list | Mapping)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and is_scalar(value) and not isinstance(value, bool)


def _typed(values: Sequence[Any], declared: Any) -> list[Any]:
    return [value if refusal(declared, value) else plain_value(declared, value) for value in values]


def typed(given: Any, declared: Any) -> Any:
    """What a file gives for a dimension in its declared type: 1 as 1.0, `fp32` as `32-true`.

    What the type does not take stays as it is.
    """
    if isinstance(given, list):
        return _typed(given, declared)
    if isinstance(given, Mapping):
        numbers = {name: value for name, value in given.items() if _is_number(value)}
        return {
            **given,
            **dict(zip(numbers, _typed(list(numbers.values()), declared), strict=True)),
        }
    return _typed([given], declared)[0]


def typed_section(given: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """`typed` for each name of a section."""
    return {
        name: typed(value, types[name]) if name in types else value for name, value in given.items()
    }
