"""Faults beyond the dimensions: data, metrics, the memory budget, the tokens of a trial."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from search.errors import Fault, InputError
from search.metric import KNOWN_METRICS, Goal, Metric
from search.objective import Objective, Split
from search.results import Params
from search.sweep.dimensions import is_plain
from search.sweep.sweep import Bytes, Count
from search.sweep.values import refusal, typed_section
from search.sweep.words import unknown
from search.units import format_bytes

_MENDABLE = (InputError, OSError, ValueError)
"""What an objective raises about data it cannot use."""


def valid(kind: Any, value: object) -> Any:
    """The value as its type reads it, or None where it cannot."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return None


def budget_faults(
    memory: Mapping[str, Any], capacity_bytes: int | Callable[[], int]
) -> Iterator[Fault]:
    """A budget above what the device has. Left out: the budget for a device that is named."""
    budget = valid(Bytes, memory.get("budget"))
    if budget is None or memory.get("device") is not None:
        return
    capacity = capacity_bytes() if callable(capacity_bytes) else capacity_bytes
    if budget > capacity:
        message = (
            f"must be at most what this device has, {format_bytes(capacity)}, "
            f"found {format_bytes(budget)}"
        )
        yield Fault(place="memory.budget", message=message)


def metric_faults(goals: Mapping[str, Any], metrics: Sequence[Metric]) -> Iterator[Fault]:
    """Metrics that nothing measures, and goals the wrong way round."""
    known = {metric.name: metric for metric in (*metrics, *KNOWN_METRICS)}
    for name, goal in goals.items():
        place = f"objectives.{name}"
        if name not in known:
            yield Fault(place=place, message=unknown(name, "metric", tuple(known)))
        elif goal in ("min", "max") and goal != known[name].goal:
            better = "less" if known[name].goal is Goal.MIN else "more"
            message = f"must be {known[name].goal.value}, since {better} is better, found {goal}"
            yield Fault(place=place, message=message)


def typed_settings(objective: type[Objective], data: Mapping[str, Any]) -> dict[str, Any]:
    """The `data` section with plain settings in the types that the objective declares."""
    return typed_section(data, _plain_types(objective))


def opened(
    objective: type[Objective], data: Mapping[str, Any]
) -> tuple[Objective | None, list[Fault]]:
    """The objective on its data, or why those cannot be used."""
    faults = list(_setting_faults(objective, data))
    if faults:
        return None, faults
    try:
        return objective(**data), []
    except _MENDABLE as error:
        return None, [_data_fault(error, data)]


def _plain_types(objective: type[Objective]) -> dict[str, Any]:
    try:
        hints = get_type_hints(objective.__init__)
    except NameError:
        return {}
    return {name: declared for name, declared in hints.items() if is_plain(declared)}


def _setting_faults(objective: type[Objective], data: Mapping[str, Any]) -> Iterator[Fault]:
    settings, types = inspect.signature(objective).parameters, _plain_types(objective)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in settings.values())
    for name, value in data.items():
        if name not in settings and not takes_any:
            kind = f"setting of {objective.__name__}"
            yield Fault(place=f"data.{name}", message=unknown(name, kind, tuple(settings)))
        elif name in types and (why := refusal(types[name], value)):
            yield Fault(place=f"data.{name}", message=why)
    for name, setting in settings.items():
        if name not in data and _is_required(setting):
            yield Fault(place=f"data.{name}", message=f"must be given (`{name}: ...`)")


def _is_required(setting: inspect.Parameter) -> bool:
    named = setting.kind in (setting.POSITIONAL_OR_KEYWORD, setting.KEYWORD_ONLY)
    return named and setting.default is setting.empty


def window_faults(objective: Objective, params: Params, data: Mapping[str, Any]) -> Iterator[Fault]:
    """What an objective says when asked for its first batches for the longest samples searched."""
    params = {**params, "micro_batch_size": 1}
    for split, num_tokens in ((Split.TRAIN, 1), (Split.HELD_OUT, None)):
        try:
            next(iter(objective.data(params, split, seed=0, num_tokens=num_tokens)))
        except StopIteration:
            message = f"has nothing for the {split.value} split (give it more)"
            yield Fault(place="data", message=message)
        except _MENDABLE as error:
            yield _data_fault(error, data)


def _data_fault(error: Exception, data: Mapping[str, Any]) -> Fault:
    """A fault at the setting whose value, or else whose name, the message speaks of."""
    message = str(error)
    words = [
        *((name, str(value)) for name, value in data.items()),
        *((name, name) for name in data),
    ]
    spoken_of = [name for name, word in words if word and _holds(message, word)]
    if not spoken_of:
        return Fault(place="data", message=message)
    return Fault(place=f"data.{spoken_of[0]}", message=message.removeprefix(f"{spoken_of[0]} "))


def _holds(message: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", message) is not None


def token_faults(
    trial: Mapping[str, Any], largest_batch: int, tokens_per_sample: int
) -> Iterator[Fault]:
    """Too few tokens for one step of the largest batch of the longest samples."""
    tokens, least = valid(Count, trial.get("tokens")), largest_batch * tokens_per_sample
    if tokens is not None and tokens < least:
        message = (
            f"must be at least {least}, one step of {largest_batch} samples of "
            f"{tokens_per_sample} tokens, found {tokens} (raise it, or search smaller batches)"
        )
        yield Fault(place="trial.tokens", message=message)
