"""The search space: ranges and choices by the name of their dimension."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterator, KeysView, Mapping
from decimal import Decimal
from itertools import product
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    Tag,
    model_validator,
)

from search.results import ParamValue
from search.sweep.words import found, refuse, repeated

STRICT = ConfigDict(
    frozen=True,
    strict=True,
    extra="forbid",
    allow_inf_nan=False,
    validate_default=True,
    use_attribute_docstrings=True,
)
"""How every model of the sweep file is validated."""


def _scalar(value: object) -> object:
    if isinstance(value, list | Mapping):
        refuse(f"must be one value, found {found(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        refuse(f"must be a finite number, found {found(value)}")
    return value


def _tuple(given: object) -> object:
    return tuple(given) if isinstance(given, list) else given


Scalar = Annotated[ParamValue, BeforeValidator(_scalar)]
Number = Annotated[float, AfterValidator(float)]


class FloatRange(BaseModel):
    """Real numbers from `low` to `high`; with a `step` only low, low + step, ..."""

    model_config = STRICT

    low: Number
    """The least value, itself included."""
    high: Number
    """The greatest value, itself included when a step leads there."""
    log: bool = False
    """Whether to draw evenly on a logarithmic scale: 0.001 to 0.01 as often as 0.01 to 0.1."""
    step: Annotated[Number, Field(gt=0)] | None = None
    """Distance of neighbouring values. Default: none, every real number between the bounds."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        _check_bounds(self.low, self.high, self.step, log=self.log)
        if self.log and self.step is not None:
            refuse("does not go with log (leave one of them out)", within="step")
        return self

    def contains(self, value: ParamValue) -> bool:
        """Whether a value is a number within the bounds, and on the grid where there is a step."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.step is None:
            return self.low <= value <= self.high
        index = round((value - self.low) / self.step)
        return index in range(self._num_steps() + 1) and math.isclose(value, self.at(index))

    def num_values(self) -> int | None:
        """How many values there are; None when they are continuous."""
        return None if self.step is None else self._num_steps() + 1

    def values(self) -> tuple[float, ...] | None:
        """Every value in rising order; None when they are continuous."""
        return None if self.step is None else tuple(map(self.at, range(self._num_steps() + 1)))

    def at(self, index: int) -> float:
        """The value that many steps above `low`, as decimals add: 0.1 + 2 x 0.1 is 0.3."""
        return float(_exact(self.low) + index * _exact(self.step or 0))

    def _num_steps(self) -> int:
        return int((_exact(self.high) - _exact(self.low)) // _exact(self.step or 1))


class IntRange(BaseModel):
    """Whole numbers from `low` to `high`, `step` apart."""

    model_config = STRICT

    low: int
    """The least value, itself included."""
    high: int
    """The greatest value, itself included when a step leads there."""
    log: bool = False
    """Whether to draw evenly on a logarithmic scale: 8 to 16 as often as 16 to 32."""
    step: int = Field(default=1, gt=0)
    """Distance of neighbouring values."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        _check_bounds(self.low, self.high, self.step, log=self.log)
        if self.log and self.step != 1:
            refuse("does not go with log (leave one of them out)", within="step")
        return self

    def contains(self, value: ParamValue) -> bool:
        """Whether a value is a whole number within the bounds and on the grid."""
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def num_values(self) -> int:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def values(self) -> tuple[int, ...]:
        """Every value in rising order."""
        return tuple(range(self.low, self.high + 1, self.step))

    def at(self, index: int) -> int:
        """The value that many steps above `low`."""
        return self.low + index * self.step


class Choices(RootModel[Annotated[tuple[Scalar, ...], BeforeValidator(_tuple)]]):
    """Values to choose among, in the order given. They need not be numbers."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if not self.root:
            refuse("must list at least one choice")
        if twice := repeated(self.root, self.root):
            refuse(twice)
        return self

    def contains(self, value: ParamValue) -> bool:
        """Whether a value is one of the choices; `true` is not 1."""
        return any(_kind(value) == _kind(each) and value == each for each in self.root)

    def num_values(self) -> int:
        """How many choices there are."""
        return len(self.root)

    def values(self) -> tuple[ParamValue, ...]:
        """The choices in the order given."""
        return self.root


def _form(given: object) -> str | None:
    """Which kind of dimension a value of the file is; None when it is none."""
    if isinstance(given, Choices | list | tuple):
        return "choices"
    if isinstance(given, FloatRange | IntRange):
        return "float" if isinstance(given, FloatRange) else "int"
    if not isinstance(given, Mapping):
        return None
    numbers = [given[name] for name in ("low", "high", "step") if given.get(name) is not None]
    return "int" if all(type(number) is int for number in numbers) else "float"


Dimension = Annotated[
    Annotated[FloatRange, Tag("float")]
    | Annotated[IntRange, Tag("int")]
    | Annotated[Choices, Tag("choices")],
    Discriminator(
        _form,
        custom_error_type="dimension",
        custom_error_message="must be a list of choices or a range such as {low: 1, high: 8}"
        " (a single value belongs under 'fixed')",
    ),
]
"""What one name in a space may be: a list of choices, or a range of whole or of real numbers."""


class Space(RootModel[dict[str, Dimension]]):
    """Dimensions by name, in the order of the file. Reads like a mapping."""

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if not self.root:
            refuse("must name at least one dimension to search")
        return self

    def __getitem__(self, name: str) -> Dimension:
        """The dimension of a name."""
        return self.root[name]

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]  # names, as a mapping's
        """The names in order."""
        return iter(self.root)

    def __len__(self) -> int:
        """How many dimensions there are."""
        return len(self.root)

    def __contains__(self, name: object) -> bool:
        """Whether a name is searched."""
        return name in self.root

    def keys(self) -> KeysView[str]:
        """The names in order."""
        return self.root.keys()

    def items(self) -> ItemsView[str, Dimension]:
        """Names with their dimensions."""
        return self.root.items()

    def log_names(self) -> frozenset[str]:
        """The names of the dimensions that are drawn on a logarithmic scale."""
        ranges = {name: each for name, each in self.items() if not isinstance(each, Choices)}
        return frozenset(name for name, each in ranges.items() if each.log)

    def contains(self, point: Mapping[str, ParamValue]) -> bool:
        """Whether a point has a value for each dimension, each of them in it, and nothing else."""
        return point.keys() == self.root.keys() and all(
            dimension.contains(point[name]) for name, dimension in self.items()
        )

    def num_points(self) -> int | None:
        """How many different points there are; None when a dimension is continuous."""
        counts = [dimension.num_values() for dimension in self.root.values()]
        return None if None in counts else math.prod(count for count in counts if count)

    def points(self) -> Iterator[dict[str, ParamValue]]:
        """Every point, the last dimension changing fastest.

        Raises:
            ValueError: when a dimension is continuous; ask `num_points` first.
        """
        columns = [_all_values(name, dimension) for name, dimension in self.items()]
        return (dict(zip(self.root, values, strict=True)) for values in product(*columns))


def _all_values(name: str, dimension: Dimension) -> tuple[ParamValue, ...]:
    values = dimension.values()
    if values is None:
        msg = f"{name} is continuous: its points cannot be listed"
        raise ValueError(msg)
    return values


def _check_bounds(low: float, high: float, step: float | None, *, log: bool) -> None:
    if log and low <= 0:
        mend = "1" if isinstance(low, int) else "1e-5"
        refuse(f"must be above 0 on a log scale, found {low:g} (try {mend})", within="low")
    if high < low:
        refuse(f"must be above low, {low:g}, found {high:g} (swap the two)", within="high")
    if high == low:
        msg = f"must be above low, {low:g}, found {high:g} (a single value belongs under 'fixed')"
        refuse(msg, within="high")
    if step is not None and step > high - low:
        refuse(f"must be at most high - low, {high - low:g}, found {step:g}", within="step")


def _exact(number: float) -> Decimal:
    return Decimal(str(number))


def _kind(value: ParamValue) -> type:
    return float if type(value) is int else type(value)
