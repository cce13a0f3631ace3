"""Loops that take turns step by step, each in a thread of its own, and what their steps cost.

What a machine that others use too does changes within a second. Loops that run one after another
then meet different machines; ones that take turns meet the same. One thread runs at any time: the
others wait without using the processor, so the time of the process is that of the one.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The seconds of a step: on the clock, and of the processor, all threads together."""

    wall_seconds: float
    cpu_seconds: float


class Turns:
    """Lets loops run in rounds: each a burst of steps, in another order each round."""

    def __init__(self, names: Sequence[str], *, device: torch.device, burst: int = 1) -> None:
        """Draws the first order.

        Args:
            names: of the loops.
            device: a GPU is waited for at the end of every burst.
            burst: steps of one loop before the next has its turn.
        """
        self.steps: dict[str, list[Step]] = {name: [] for name in names}
        self._names = list(names)
        self._device = device
        self._burst = burst
        self._random = random.Random(0)  # noqa: S311 - no secret
        self._order: list[str] = []
        self._turn = threading.Condition()
        self._pass_on()

    def _pass_on(self) -> None:
        """Whose turn it is goes to the next; with the turn's lock held, or before any thread."""
        if self._order:
            self._order.pop(0)
        if not self._order:
            self._order = self._random.sample(self._names, len(self._names))

    def taken(self, name: str, items: Iterator[_Item]) -> Iterator[_Item]:
        """The items of one loop; asking for one ends its step, and after a burst its turn."""
        started = None
        for number, item in enumerate(items):
            if number % self._burst == 0:
                if started:
                    self.steps[name].append(self._since(started))
                    self._leave_to_next()
                    self._wait(name)
                started = self._now()
            yield item

    def _since(self, started: tuple[float, float]) -> Step:
        wall, cpu = (end - start for start, end in zip(started, self._now(), strict=True))
        return Step(wall_seconds=wall / self._burst, cpu_seconds=cpu / self._burst)

    def _now(self) -> tuple[float, float]:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def _leave_to_next(self) -> None:
        with self._turn:
            self._pass_on()
            self._turn.notify_all()

    def _wait(self, name: str) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._order[0] == name)

    def leave(self, name: str) -> None:
        """Takes a loop that has ended out of all rounds to come."""
        with self._turn:
            self._names.remove(name)
            if self._names:
                self._pass_on()
            self._turn.notify_all()

    def run(self, loops: Mapping[str, Callable[[], _Result]]) -> dict[str, _Result]:
        """What the loops return, run to their ends; raises what the first of them raised."""
        results: dict[str, _Result] = {}
        errors: list[BaseException] = []
        num_threads = torch.get_num_threads()

        def run_one(name: str) -> None:
            torch.set_num_threads(num_threads)  # each thread has its own number
            self._wait(name)
            try:
                results[name] = loops[name]()
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                errors.append(error)
            finally:
                self.leave(name)

        threads = [threading.Thread(target=run_one, args=(name,)) for name in loops]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median over rounds of one loop's time over another's.

    Between `low` and `high` the median of endless rounds lies, with a probability of 95 % or more.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """As it stands in a table."""
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio(these: Sequence[Step], those: Sequence[Step], clock: str) -> Ratio:
    """Of two loops' times of a step, round by round, by one of the clocks of a `Step`."""
    each = sorted(getattr(a, clock) / getattr(b, clock) for a, b in zip(these, those, strict=True))
    below = _rounds_outside(len(each))
    return Ratio(median=statistics.median(each), low=each[below], high=each[-1 - below])


def _rounds_outside(num_rounds: int) -> int:
    """How many at either end lie outside of the interval of the median, whatever is measured.

    Source: the sign test: of independent rounds, as many lie below the median as heads fall in as
    many tosses.
    """
    tail, outside = 0.0, 0
    while (tail := tail + math.comb(num_rounds, outside) / 2**num_rounds) <= _TAIL:
        outside += 1
    return max(0, outside - 1)


_TAIL = 0.025
