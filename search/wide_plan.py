"""What fits of a space too large to judge structure by structure.

The bytes of tensors alive at their peak put the sizes of one model in order. The border of what
fits is looked for along that order, and each structure at it is judged as any other; the rest
follows from its place. Left out: how a single structure is judged, see `search.plan`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np

from search.memory.feasibility import DoesNotFit, Verdict
from search.memory.mend import Mend
from search.memory.polynomials import Integers
from search.memory.speed import Speed
from search.plan import Counts, Judge, Plan, PlannedPoint, in_full
from search.results import Params
from search.wide_space import BATCH, MICRO_BATCH, Point, WideSpace

MAX_BORDERS = 32
"""Borders looked for in one space: each takes a few judgements."""
_NO_LIMIT = np.iinfo(np.int64).max

PeakBytes = Callable[[Params, Integers], Integers]


def plan_wide(
    wide: WideSpace,
    *,
    fits: Callable[[Params], Verdict],
    peak_bytes: PeakBytes,
    budget_bytes: int,
    on_point: Callable[[int, int], None],
    mend: Callable[[DoesNotFit], Mend | None],
    speed: Callable[[Params], Speed | None],
) -> Plan:
    """The structures at the border of what fits judged, and how many of all fit.

    Of each model and length these are the largest that fits and the next, which does not. Where
    there are more than 32, some are looked at, and the others follow where these agree.

    Args:
        wide: the space.
        fits: judges one configuration.
        peak_bytes: the bytes that give the order, see `Predictor.peak_bytes`.
        budget_bytes: what one trial may use.
        on_point: told how many models are done, of all.
        mend: finds what would make the first that does not fit fit.
        speed: estimates that of the largest that fits.
    """
    models = wide.models
    if len(models) > MAX_BORDERS:
        models = random.Random(0).sample(models, MAX_BORDERS)  # noqa: S311 - a spread, no secret
    judge = Judge(params_of=wide.params_of, fits=fits)
    points: list[PlannedPoint] = []
    counts = np.zeros(3, dtype=np.int64)
    for num_done, model in enumerate(models, start=1):
        border = _Border(wide, model, judge, peak_bytes, budget_bytes)
        points += (in_full(each, mend=mend, speed=speed) for each in border.judged(len(models)))
        counts += border.counts()
        on_point(num_done, len(models))
    return Plan(
        points=tuple(points),
        unpredicted=tuple(judge.unpredicted),
        budget_bytes=budget_bytes,
        complete=len(models) == len(wide.models),
        counts=Counts(
            num_points=int(counts[0]), num_fitting=int(counts[1]), num_undecided=int(counts[2])
        ),
    )


class _Border:
    """What fits of one model."""

    def __init__(
        self,
        wide: WideSpace,
        model: Point,
        judge: Judge,
        peak_bytes: PeakBytes,
        budget_bytes: int,
    ) -> None:
        self._wide, self._model, self._judge = wide, model, judge
        self._grid = wide.grid(model)
        self._bytes = peak_bytes(self._grid.params, self._grid.numbers)
        self._fits = np.full(len(self._bytes), -1)  # 1 fits, 0 does not, -1 is not decided
        self._guess_bytes = self._budget_bytes = budget_bytes
        self._added_bytes: list[int] = []

    def judged(self, num_models: int) -> Iterator[PlannedPoint]:
        """The largest that fits and the next, of each length that is looked at."""
        lengths = np.unique(self._grid.numbers[:, 2])
        count = max(2, MAX_BORDERS // num_models)
        places = np.unique(np.linspace(0, len(lengths) - 1, count).round().astype(int))
        for length in lengths[places] if len(lengths) > count else lengths:
            yield from self._along(np.flatnonzero(self._grid.numbers[:, 2] == length))
        self._infer()

    def _along(self, rows: Integers) -> Iterator[PlannedPoint]:
        """Looks for the border among sizes of one length."""
        sizes = self._grid.numbers[rows]
        rows = rows[np.lexsort((sizes[:, 0], sizes[:, 1], self._bytes[rows]))]
        found: dict[int, PlannedPoint] = {}

        def fits(place: int) -> bool | None:
            row = int(rows[place])
            num_bytes, judged = int(self._bytes[row]), self._judge(self._point(row))
            if judged is None:
                return None
            found[place] = judged
            self._added_bytes.append(judged.verdict.predicted.high_bytes - num_bytes)
            return judged.fits

        guess = int(np.searchsorted(self._bytes[rows], self._guess_bytes))
        border = last_that_holds(fits, len(rows), guess=guess)
        if border is not None:
            self._fits[rows[: border + 1]], self._fits[rows[border + 1 :]] = 1, 0
            if border >= 0:
                self._guess_bytes = int(self._bytes[rows[border]]) + 1
            yield from (found[place] for place in (border, border + 1) if place in found)

    def _point(self, row: int) -> Point:
        values = zip((BATCH, MICRO_BATCH, self._wide.length), self._grid.values(row), strict=True)
        sizes = {name: value for name, value in values if name in self._wide.sizes}
        return self._wide.at(self._model, sizes)

    def _infer(self) -> None:
        """Decides what was not looked at, where all that was judged agrees.

        It fits where it takes less than all that was refused, and room is left for the most that
        any prediction added to its bytes, and for their spread once more, as at a size that was not
        looked at it may be more; the other way round it does not.
        """
        if not self._added_bytes:
            return
        known = self._bytes >= 0
        fitting, refused = (self._bytes[known & (self._fits == each)] for each in (1, 0))
        least, most = min(self._added_bytes), max(self._added_bytes)
        spread = most - least
        below = min(refused.min(initial=_NO_LIMIT), self._budget_bytes - most - spread + 1)
        above = max(fitting.max(initial=-1), self._budget_bytes - least + spread)
        undecided = known & (self._fits == -1)
        self._fits[undecided & (self._bytes < below)] = 1
        self._fits[undecided & (self._bytes > above)] = 0

    def counts(self) -> Integers:
        """All structures, those that fit, those not decided."""
        return np.array([len(self._fits), (self._fits == 1).sum(), (self._fits == -1).sum()])


def last_that_holds(holds: Callable[[int], bool | None], count: int, *, guess: int) -> int | None:
    """The last place at which something holds that holds up to some place and never after it.

    -1 where it holds nowhere. Steps grow from the guess until they pass the border, which is then
    halved in. None as soon as `holds` cannot say.
    """
    low, high, step = -1, count, 1
    place = min(max(guess, 0), count - 1)
    while high - low > 1:
        answer = holds(place)
        if answer is None:
            return None
        low, high = (place, high) if answer else (low, place)
        if low >= 0 and high < count:
            place = (low + high) // 2
        else:
            place = min(place + step, count - 1) if answer else max(place - step, 0)
            step *= 2
    return low
