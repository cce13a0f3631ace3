"""Faults of a file's dimensions together: what the dataclasses that declare them refuse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import product
from random import Random
from typing import Any

from pydantic import TypeAdapter, ValidationError

from search.errors import Fault
from search.results import ParamValue
from search.sweep.dimensions import build, dimension_types, plain_value
from search.sweep.space import Dimension, FloatRange
from search.sweep.values import is_scalar, refusal, typed, value_faults
from search.sweep.words import found

_MOST_COMBINATIONS = 2000
_LISTED_VALUES = 24
"""A range with more values than this is judged by its ends, their neighbours and its middle."""

_dimension: TypeAdapter[Dimension] = TypeAdapter(Dimension)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A value that a dimension may take, and where in the file it comes from."""

    place: str
    value: ParamValue
    within_range: bool = False

    @property
    def searched(self) -> bool:
        """Whether it comes from the space and not from what is fixed."""
        return self.place.startswith("space.")


Candidates = Mapping[str, Sequence[Candidate]]
"""Some values of each dimension that the file gives and understands: all, or the telling ones."""


def candidates(
    space: Mapping[str, Any], fixed: Mapping[str, Any], types: Mapping[str, Any]
) -> dict[str, list[Candidate]]:
    """The candidates of every dimension that is free of faults so far."""
    found_in_space = {
        name: list(_searched(f"space.{name}", given, types[name]))
        for name, given in space.items()
        if name in types
    }
    found_in_fixed = {
        name: [Candidate(place=f"fixed.{name}", value=plain_value(types[name], value))]
        for name, value in fixed.items()
        if name in types and is_scalar(value) and not refusal(types[name], value)
    }
    everything = {**found_in_fixed, **found_in_space}
    return {name: values for name, values in everything.items() if values}


def _searched(place: str, given: object, declared: Any) -> Iterator[Candidate]:
    if isinstance(given, list):
        values = [value for value in given if is_scalar(value) and not refusal(declared, value)]
        chosen = [Candidate(place=place, value=value) for value in typed(values, declared)]
        yield from dict.fromkeys(chosen)
    elif isinstance(given, Mapping) and not list(value_faults(place, given, declared)):
        yield from _within(place, typed(given, declared))


def _within(place: str, given: Mapping[str, Any]) -> Iterator[Candidate]:
    try:
        dimension = _dimension.validate_python(given)
    except ValidationError:
        return
    values = _telling_values(dimension)
    ends = {values[0]: f"{place}.low", values[-1]: f"{place}.high"}
    for value in sorted(values, key=lambda each: each not in ends):
        yield Candidate(place=ends.get(value, place), value=value, within_range=value not in ends)


def _telling_values(dimension: Any) -> list[Any]:
    count = dimension.num_values()
    if count is None:
        return _spread(dimension)
    if count <= _LISTED_VALUES:
        return list(dimension.values())
    return [dimension.at(index) for index in (0, 1, count // 2, count - 2, count - 1)]


def _spread(dimension: FloatRange) -> list[float]:
    low, high = dimension.low, dimension.high
    return [low, math.sqrt(low * high) if dimension.log else (low + high) / 2, high]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A candidate for each dimension of a group, and why its dataclass refuses them, if so."""

    chosen: Mapping[str, Candidate]
    refusal: str

    @property
    def params(self) -> dict[str, ParamValue]:
        """The values alone."""
        return {name: candidate.value for name, candidate in self.chosen.items()}


def combinations(group: type, known: Candidates) -> list[Combination]:
    """Every combination of a group's candidates, or a fixed draw of 2,000 where there are more.

    None when a dimension without a default has no candidate.
    """
    own = {name: known[name] for name in dimension_types(group) if name in known}
    if not own.keys() >= set(_required(group)):
        return []
    if math.prod(map(len, own.values())) <= _MOST_COMBINATIONS:
        drawn = [dict(zip(own, each, strict=True)) for each in product(*own.values())]
    else:
        random = Random(0)  # noqa: S311 - a draw to look at, no secret
        drawn = [
            {name: random.choice(values) for name, values in own.items()}
            for _ in range(_MOST_COMBINATIONS)
        ]
    return [Combination(chosen=each, refusal=_refused(group, each)) for each in drawn]


def _refused(group: type, chosen: Mapping[str, Candidate]) -> str:
    return _group_refusal(group, {name: candidate.value for name, candidate in chosen.items()})


def _group_refusal(group: type, params: Mapping[str, ParamValue]) -> str:
    try:
        build(group, params)
    except ValueError as error:
        return str(error)
    return ""


def missing_faults(group: type, named: Sequence[str]) -> Iterator[Fault]:
    """Dimensions without a default that the file does not name."""
    for name in _required(group):
        if name not in named:
            message = f"has no default (give it under 'fixed', as `{name}: ...`, or search it)"
            yield Fault(place=f"fixed.{name}", message=message)


def _required(group: type) -> list[str]:
    return [
        field.name
        for field in fields(group)
        if field.default is MISSING and field.default_factory is MISSING
    ]


def group_faults(group: type, known: Candidates, tried: Sequence[Combination]) -> Iterator[Fault]:
    """What a group's own check refuses: values that never work, then some that do not go together.

    Left out: values within a range that has a fault already.
    """
    if not tried:
        return
    at_fault: set[Candidate] = set()
    ranges_at_fault: set[str] = set()
    for name, candidate in _own(group, known):
        refusals = _refusals(group, name, candidate, tried)
        if not refusals:
            continue
        at_fault.add(candidate)
        if not (candidate.within_range and name in ranges_at_fault):
            yield Fault(place=candidate.place, message=_message(refusals, name, candidate.value))
        ranges_at_fault.add(name)
    left = [each for each in tried if not at_fault.intersection(each.chosen.values())]
    refused = [each for each in left if each.refusal]
    if refused:
        yield _together(refused[0], len(refused), len(left))


def _own(group: type, known: Candidates) -> Iterator[tuple[str, Candidate]]:
    for name in dimension_types(group):
        yield from ((name, candidate) for candidate in known.get(name, ()))


def _refusals(
    group: type, name: str, candidate: Candidate, tried: Sequence[Combination]
) -> list[str]:
    """Why a candidate never works; nothing when it does, or when other searched values are why.

    A candidate is at fault when everything tried with it is refused, and either so it is beside
    the defaults, or what refuses it speaks of no other dimension that is searched.
    """
    beside_others = [each for each in tried if each.chosen[name] is candidate]
    refusals = [each.refusal for each in beside_others]
    if not all(refusals):
        return []
    required = {each: tried[0].params[each] for each in _required(group)}
    beside_defaults = _group_refusal(group, {**required, name: candidate.value})
    if beside_defaults:
        return [*refusals, beside_defaults]
    return refusals if all(_speaks_of(each, name) for each in beside_others) else []


def _speaks_of(combination: Combination, name: str) -> bool:
    """Whether a refusal names a searched dimension and no other one that is searched."""
    named = [each for each in combination.chosen if each in combination.refusal]
    return [each for each in named if combination.chosen[each].searched] == [name]


def _message(refusals: Sequence[str], name: str, value: ParamValue) -> str:
    refusal = next((each for each in refusals if name in each), refusals[0])
    says_value = "found" in refusal or f"{name} {value}" in refusal
    ending = "" if says_value else f", found {found(value)}"
    return refusal.removeprefix(f"{name} ") + ending


def _together(example: Combination, num_refused: int, num_tried: int) -> Fault:
    named = [name for name in example.chosen if name in example.refusal] or list(example.chosen)
    values = ", ".join(f"{name} {found(example.chosen[name].value)}" for name in named)
    searched = any(example.chosen[name].searched for name in named)
    message = (
        f"{example.refusal}, for example at {values}; {num_refused} of {num_tried} combinations "
        "tried are refused (leave out the values that do not go together)"
    )
    return Fault(place="space" if searched else "fixed", message=message)
