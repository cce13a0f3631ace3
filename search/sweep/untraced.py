"""Sweep files about a function or a command: any dimensions, metrics that the file itself names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search.errors import Fault, InputError
from search.metric import KNOWN_METRICS, Goal, Metric
from search.objective import Untraced, load_trainable
from search.sweep import checks
from search.sweep.command import command_faults
from search.sweep.document import section_of
from search.sweep.words import found, unknown

SEED = "seed"
"""A dimension that every configuration has."""
_RANKS = ("world_size", "sharding")


def untraced(data: Mapping[str, Any]) -> Untraced | None:
    """What trains by itself, if that is what the file names."""
    objective, command = data.get("objective"), data.get("command")
    if isinstance(command, str) and objective is None:
        return Untraced(named=command, metrics=_metrics(data), provenance={"command": command})
    if isinstance(objective, str) and _is_function(objective):
        return Untraced(named=objective, metrics=_metrics(data), provenance={"function": objective})
    return None


def _is_function(path: str) -> bool:
    try:
        return not isinstance(load_trainable(path), type)
    except InputError:
        return False


def _metrics(data: Mapping[str, Any]) -> tuple[Metric, ...]:
    """The metrics under `objectives` that are not measured anyway."""
    measured = {metric.name for metric in KNOWN_METRICS}
    goals = section_of(data, "objectives")
    return tuple(
        Metric(name=name, goal=Goal(goal))
        for name, goal in goals.items()
        if name not in measured and goal in list(Goal)
    )


def untraced_faults(data: Mapping[str, Any], subject: Untraced) -> Iterator[Fault]:
    """What is wrong with a file about what trains by itself, beyond its fields."""
    space, fixed = section_of(data, "space"), section_of(data, "fixed")
    memory, goals = section_of(data, "memory"), section_of(data, "objectives")
    known = tuple(dict.fromkeys([*space, *fixed, SEED]))
    if subject.provenance.get("command") is not None:
        yield from command_faults(subject.named, searched=tuple(space), known=known)
    if data.get("compression") is not None:
        message = "is for objectives alone: nobody has the model of what trains by itself"
        yield Fault(place="compression", message=f"{message} (leave it out)")
    if data.get("data"):
        message = "is handed to objectives alone (put settings under 'fixed')"
        yield Fault(place="data", message=message)
    for name in fixed:
        if name in space:
            message = "is searched in 'space' too (leave it out of one of the two)"
            yield Fault(place=f"fixed.{name}", message=message)
    yield from _rank_faults(space, fixed)
    yield from checks.metric_faults(
        {name: goal for name, goal in goals.items() if goal in list(Goal)}, subject.metrics
    )
    yield from _memory_faults(memory, space, fixed, known)


def _rank_faults(space: Mapping[str, Any], fixed: Mapping[str, Any]) -> Iterator[Fault]:
    """Dimensions that spread a trial over processes, which only a known training step can be."""
    for section, names in (("space", space), ("fixed", fixed)):
        for name in _RANKS:
            if name in names:
                message = (
                    "is for objectives alone: a function or a command trains in a process of its "
                    "own (leave it out, or give it another name)"
                )
                yield Fault(place=f"{section}.{name}", message=message)


def _memory_faults(
    memory: Mapping[str, Any],
    space: Mapping[str, Any],
    fixed: Mapping[str, Any],
    known: Sequence[str],
) -> Iterator[Fault]:
    if memory.get("rescue") is True:
        message = "changes the training step of objectives alone (leave it out)"
        yield Fault(place="memory.rescue", message=message)
    place = "memory.grows_with"
    names = memory.get("grows_with")
    for name in names if isinstance(names, list) else ():
        if name not in known or name == SEED:
            known_here = tuple(each for each in known if each != SEED)
            yield Fault(place=place, message=unknown(name, "dimension", known_here))
            continue
        bad = [value for value in _ends(name, space, fixed) if not _is_size(value)]
        if bad:
            message = f"{name} must be a number from 0 in all trials, found {found(bad[0])}"
            yield Fault(place=place, message=f"{message} (leave {name} out)")


def _ends(name: str, space: Mapping[str, Any], fixed: Mapping[str, Any]) -> list[Any]:
    """The values of a dimension that decide whether all of them are sizes."""
    if name not in space:
        return [fixed[name]]
    given = space[name]
    if isinstance(given, Mapping):
        return [given[end] for end in ("low", "high") if end in given]
    return list(given) if isinstance(given, list) else []


def _is_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf


def objective_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """What only a function or a command may have, in a file about an objective."""
    if "command" in data and "objective" in data:
        message = "is given beside an objective (leave one of the two out)"
        yield Fault(place="command", message=message)
    if section_of(data, "memory").get("grows_with"):
        message = (
            "is for a function or a command: the memory of an objective is predicted (leave it out)"
        )
        yield Fault(place="memory.grows_with", message=message)
