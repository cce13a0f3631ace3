"""A search space as models, and the sizes that each of them may have.

Sizes are those of the batch and of a sample, gone through all at once; a model is all the rest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from search.memory.polynomials import Integers
from search.plan import MAX_POINTS as MAX_JUDGED
from search.plan import structure_points
from search.results import Params, ParamValue
from search.sweep.space import Space

MAX_WIDE = 1 << 22
"""Structures of a space that is looked at as a whole; of a larger one, a spread."""
BATCH, MICRO_BATCH = "batch_size", "micro_batch_size"
_FIRST = range(4)
"""Places of the values of a size that a program must not miss, see `_few`."""

Point = dict[str, ParamValue]


@dataclass(frozen=True, kw_only=True)
class WideSpace:
    """A space whose sizes, of the batch and of a sample, are gone through all at once.

    `length` is the dimension that is the length of a sample, None where there is none.
    """

    space: Space
    params_of: Callable[[Mapping[str, ParamValue]], Params]
    length: str | None

    @property
    def is_wide(self) -> bool:
        """Whether it has more structures than can be judged, and not more than can be counted."""
        return self.is_complete and MAX_JUDGED < self.num_points <= MAX_WIDE

    @cached_property
    def models(self) -> list[Point]:
        """All but the sizes."""
        return structure_points(self._others)[0]

    @property
    def is_complete(self) -> bool:
        """Whether `models` are all there are, and each size has a list of values."""
        sizes = all(self.space[name].values() for name in self.sizes)
        return sizes and structure_points(self._others)[1]

    @property
    def _others(self) -> Space:
        kept = {name: each for name, each in self.space.items() if name not in self.sizes}
        return Space.model_construct(kept)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The sizes that are searched."""
        names = (BATCH, MICRO_BATCH, self.length)
        return tuple(name for name in names if name is not None and name in self.space)

    @property
    def num_points(self) -> int:
        """How many structures there are, sizes that do not go together among them."""
        values = (self.space[name].num_values() or 0 for name in self.sizes)
        return len(self.models) * math.prod(values)

    def at(self, model: Point, sizes: Mapping[str, ParamValue]) -> Point:
        """One point, its dimensions in the order of the space."""
        both = {**model, **sizes}
        return {name: both[name] for name in self.space if name in both}

    def spread(self) -> Iterator[Point]:
        """For each model a few sizes, the smallest and the largest among them."""
        micro_batches = self._values(MICRO_BATCH) if MICRO_BATCH in self.sizes else ("equal",)
        lengths = _few(self._values(self.length)) if self.length in self.sizes else [1]
        for model, micro_batch, length in itertools.product(self.models, micro_batches, lengths):
            batches = self._values(BATCH) if BATCH in self.sizes else (1,)
            if isinstance(micro_batch, int):
                batches = tuple(each for each in batches if int(each or 0) % micro_batch == 0)
            for batch in _few(batches):
                both = {BATCH: batch, MICRO_BATCH: micro_batch, self.length: length}
                yield self.at(model, {name: both[name] for name in self.sizes})

    def _values(self, name: str | None) -> tuple[ParamValue, ...]:
        return self.space[name or ""].values() or ()

    def grid(self, model: Point) -> Grid:
        """All sizes of one model that go together."""
        first = {name: self._values(name)[0] for name in self.sizes}
        params = self.params_of({**model, **first})
        axes = [
            self._values(name) if name in self.sizes else (params.get(name or "", default),)
            for name, default in ((BATCH, 1), (MICRO_BATCH, "equal"), (self.length, 1))
        ]
        return Grid.of(params, *axes)


def _few(values: tuple[ParamValue, ...]) -> list[ParamValue]:
    """All of a short list or an uneven one; of even steps the first four, the middle, the last.

    The first are kinds of their own: a batch of one sample, a step of one or two micro-batches.
    """
    numbers = [value for value in values if isinstance(value, int)]
    uneven = len({after - before for before, after in itertools.pairwise(numbers)}) > 1
    if len(values) <= len(_FIRST) + 2 or len(numbers) < len(values) or uneven:
        return [*values]
    last = len(values) - 1
    return [values[place] for place in (*_FIRST, max(last // 2, len(_FIRST)), last)]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The sizes of one model that go together, one row each.

    `numbers` are the samples of a step that one process computes, its micro-batch size and the
    length, (num_rows, 3): `equal` is all those samples, `auto` is 1, as what fits in parts fits in
    the smallest. `places` are those of the values on `axes`, of the same shape.
    """

    params: Params
    axes: tuple[tuple[ParamValue, ...], ...]
    places: Integers
    numbers: Integers

    @classmethod
    def of(cls, params: Params, *axes: tuple[ParamValue, ...]) -> Grid:
        """Every row but those whose parts do not divide the batch: by processes, micro-batches."""
        every = np.indices([len(axis) for axis in axes]).reshape(len(axes), -1).T
        batch, micro_batch, length = (
            np.array([_number(value) for value in axis])[column]
            for axis, column in zip(axes, every.T, strict=True)
        )
        ranks = int(params.get("world_size") or 1)
        samples = batch // ranks
        micro_batch = np.where(micro_batch == 0, np.maximum(samples, 1), micro_batch)
        sound = (samples > 0) & (batch % ranks == 0) & (samples % micro_batch == 0)
        numbers = np.stack([samples, micro_batch, length], axis=1)
        return cls(params=params, axes=axes, places=every[sound], numbers=numbers[sound])

    def values(self, row: int) -> tuple[ParamValue, ...]:
        """Batch size, micro-batch size and length of a row, as the space writes them."""
        places = self.places[row].tolist()
        return tuple(axis[place] for axis, place in zip(self.axes, places, strict=True))


def _number(value: ParamValue) -> int:
    """0 stands for all samples."""
    return {"equal": 0, "auto": 1}[value] if isinstance(value, str) else int(value or 0)
