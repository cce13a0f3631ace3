"""What a pick must satisfy: `peak_memory <= 20 GiB`, `precision == bf16-mixed`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from search.errors import InputError
from search.metric import Metric
from search.results import ParamValue, Trial
from search.sweep.words import nearest
from search.units import format_value, parse_quantity, parse_value

_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|==|!=|=|<|>)\s*([^<>=!\s].*?)\s*")
_EQUAL_WITHIN = 1e-9


class Comparison(StrEnum):
    """How the value of a trial must stand to the stated one."""

    AT_MOST = "<="
    AT_LEAST = ">="
    BELOW = "<"
    ABOVE = ">"
    EQUAL = "=="
    UNEQUAL = "!="


_ORDERED: dict[Comparison, Callable[[float, float], bool]] = {
    Comparison.AT_MOST: operator.le,
    Comparison.AT_LEAST: operator.ge,
    Comparison.BELOW: operator.lt,
    Comparison.ABOVE: operator.gt,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A bound on a metric, in its base unit, or on a param when `metric` is None."""

    name: str
    comparison: Comparison
    value: ParamValue
    metric: Metric | None = None

    def __str__(self) -> str:
        """`peak_memory <= 20 GiB`."""
        return f"{self.name} {self.comparison} {self.shown(self.value)}"

    def shown(self, value: ParamValue) -> str:
        """A value of what is bounded, for the screen."""
        if isinstance(value, bool) or value is None:
            return str(value).lower()
        if isinstance(value, str):
            return value
        if self.metric is None:
            return f"{value:g}"
        return format_value(value, self.metric.unit)

    def of(self, trial: Trial) -> ParamValue:
        """What the trial has of it; None when it has none."""
        values = trial.params if self.metric is None else trial.metrics
        return values.get(self.name)

    def holds(self, trial: Trial) -> bool:
        """Whether the trial satisfies it; one without the value does not."""
        found = self.of(trial)
        if self.comparison in _ORDERED:
            if not _is_number(found) or not _is_number(self.value):
                return False
            return _ORDERED[self.comparison](found, self.value)
        if found is None and self.metric is not None:
            return False
        return _equal(found, self.value) is (self.comparison is Comparison.EQUAL)

    def shortfall(self, trial: Trial) -> float:
        """How far the trial misses it, as a share of the bound; 0 when it holds, 1 for words."""
        if self.holds(trial):
            return 0.0
        found = self.of(trial)
        if not _is_number(found) or not _is_number(self.value):
            return 1.0
        distance = abs(found - self.value)
        return distance / (abs(self.value) or 1.0)


def _is_number(value: ParamValue) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _equal(found: ParamValue, wanted: ParamValue) -> bool:
    if _is_number(found) and _is_number(wanted):
        return math.isclose(found, wanted, rel_tol=_EQUAL_WITHIN)
    return type(found) is type(wanted) and found == wanted


def parse_condition(
    text: str, metrics: tuple[Metric, ...], params: Collection[str] = ()
) -> Condition:
    """The condition that a text states.

    Args:
        text: a name, one of `<= >= < > == !=`, and a value with or without a unit.
        metrics: what may be bounded, with their units.
        params: names of params that may be bounded too.

    Raises:
        InputError: on another form, an unknown name, or a value that cannot be compared so.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        msg = f"{text!r} is no condition (try 'peak_memory <= 20 GiB' or 'precision == fp32')"
        raise InputError(msg)
    name, sign, value = match.groups()
    comparison = Comparison("==" if sign == "=" else sign)
    by_name = {metric.name: metric for metric in metrics}
    if name in by_name:
        metric = by_name[name]
        bound = _metric_value(text, value, metric)
        return Condition(name=name, comparison=comparison, value=bound, metric=metric)
    if name not in params:
        known = [*by_name, *params]
        msg = f"{text!r}: {name!r} is neither a metric nor a param{nearest(name, known)}"
        raise InputError(msg)
    parsed = _one_name(name, _param_value(value))
    if comparison in _ORDERED and not _is_number(parsed):
        msg = f"{text!r}: {value!r} has no order (use == or !=, or a number)"
        raise InputError(msg)
    return Condition(name=name, comparison=comparison, value=parsed)


def _metric_value(text: str, value: str, metric: Metric) -> float:
    try:
        return parse_value(value, metric.unit)
    except InputError as error:
        msg = f"{text!r}: {error}"
        raise InputError(msg) from error


def _one_name(param: str, value: ParamValue) -> ParamValue:
    """The value as trials keep it: `32-true` for a precision that is also called `fp32`."""
    if param != "precision":
        return value
    from search.sweep.dimensions import dimension_types, plain_value, training_group

    try:
        return plain_value(dimension_types(training_group())[param], value)
    except ValueError as error:
        msg = f"{param} {error}"
        raise InputError(msg) from error


def _param_value(text: str) -> ParamValue:
    words: dict[str, ParamValue] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        number, unit = parse_quantity(text)
    except InputError:
        return text.strip("'\"")
    if unit:
        return text
    return int(number) if number.is_integer() and "." not in text and "e" not in text else number
