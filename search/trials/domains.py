"""The search space in Optuna's terms.

A choice is known to Optuna by its place in the list: its values may be of mixed types, and `1`,
`1.0` and `true` stay three choices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from search.results import Params, ParamValue
from search.sweep.space import Choices, Dimension, FloatRange, IntRange, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """One Optuna distribution for each dimension, by name."""
    return {name: distribution(dimension) for name, dimension in space.items()}


def distribution(dimension: Dimension) -> BaseDistribution:
    """What Optuna draws for one dimension; the end of a stepped range is its last whole step."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(dimension, Choices):
        return CategoricalDistribution(range(dimension.num_values()))
    if isinstance(dimension, IntRange):
        return IntDistribution(
            dimension.low, dimension.values()[-1], log=dimension.log, step=dimension.step
        )
    values = dimension.values()
    high = values[-1] if values else dimension.high
    return FloatDistribution(dimension.low, high, log=dimension.log, step=dimension.step)


def point(space: Space, drawn: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    """The values of the space that Optuna's draw stands for."""
    return {name: _value(dimension, drawn[name]) for name, dimension in space.items()}


def _value(dimension: Dimension, drawn: ParamValue) -> ParamValue:
    if isinstance(dimension, Choices):
        return dimension.values()[int(drawn or 0)]
    if isinstance(dimension, FloatRange) and dimension.step is not None:
        values = dimension.values() or ()
        return values[round((float(drawn or 0) - dimension.low) / dimension.step)]
    return drawn


def draw(space: Space, point: Params) -> dict[str, ParamValue]:
    """The draw that stands for a point; the inverse of `point`."""
    return {name: _draw(dimension, point[name]) for name, dimension in space.items()}


def _draw(dimension: Dimension, value: ParamValue) -> ParamValue:
    if not isinstance(dimension, Choices):
        return value
    return [key({"": choice}) for choice in dimension.values()].index(key({"": value}))


def key(point: Params) -> str:
    """The same text for the same point, however it was reached; `1`, `1.0` and `true` differ."""
    return json.dumps({name: _rounded(point[name]) for name in sorted(point)})


def _rounded(value: ParamValue) -> ParamValue:
    return float(f"{value:.12g}") if isinstance(value, float) else value
