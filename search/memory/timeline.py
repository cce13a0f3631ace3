"""The memory of one run from its first event to its last, part by part, and each phase's peak.

For a GPU it is what the process holds of it: what torch's allocator reserves, and the context.
For a CPU it is what its tensors take, and the machine's constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from search.memory.allocator import CachingAllocator
from search.memory.events import Event, Phase
from search.memory.machine import CONTEXT, FRAGMENTATION, OVERHEAD, CpuMemory, GpuMemory
from search.memory.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is held after the `event`-th event of a run, in bytes by part."""

    event: int
    phase: Phase
    parts: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The moments of a run in order; between two of them less is held than at one of the two.

    `peaks` are the first moments at which each phase holds the most.
    """

    moments: tuple[Moment, ...]
    peaks: tuple[Moment, ...]
    num_events: int

    @property
    def peak(self) -> Moment:
        """The first moment at which the run holds the most."""
        return max(self.peaks, key=lambda moment: moment.num_bytes)


def timeline(traced: Trace, machine: GpuMemory | CpuMemory, *, num_moments: int) -> Timeline:
    """The timeline of a traced run in about `num_moments` moments, each phase with its peak.

    A moment is the one at which the most is held, of as many events in a row as it stands for.
    """
    every = max(1, -(-len(traced.events) // num_moments))
    held = _GpuHeld(machine) if isinstance(machine, GpuMemory) else _CpuHeld(machine)
    moments = tuple(_most_of_each(_moments(traced.events, held), every))
    return Timeline(moments=moments, peaks=tuple(_peaks(moments)), num_events=len(traced.events))


class _CpuHeld:
    """What a CPU holds beside tensors: a constant."""

    def __init__(self, machine: CpuMemory) -> None:
        self._beside = {OVERHEAD: machine.overhead_bytes}

    def after(self, _event: Event, _alive_bytes: int) -> Mapping[str, int]:
        return self._beside


class _GpuHeld:
    """What a GPU holds beside tensors: what is reserved for more, and the context."""

    def __init__(self, machine: GpuMemory) -> None:
        self._allocator = CachingAllocator(machine.settings)
        self._context = {CONTEXT: machine.context.expected_bytes}

    def after(self, event: Event, alive_bytes: int) -> Mapping[str, int]:
        if event.num_bytes > 0:
            self._allocator.malloc(event.storage, event.num_bytes)
        else:
            self._allocator.free(event.storage)
        reserved_bytes = self._allocator.statistics().reserved_bytes
        return {FRAGMENTATION: reserved_bytes - alive_bytes, **self._context}


def _moments(events: Sequence[Event], held: _GpuHeld | _CpuHeld) -> Iterator[Moment]:
    alive: dict[str, int] = {}
    for index, event in enumerate(events):
        part = event.part.value
        alive[part] = alive.get(part, 0) + event.num_bytes
        beside = held.after(event, sum(alive.values()))
        parts = {name: size for name, size in {**alive, **beside}.items() if size}
        yield Moment(event=index, phase=event.phase, parts=parts)


def _most_of_each(moments: Iterator[Moment], every: int) -> Iterator[Moment]:
    """Of each row of events, cut where a phase ends, the first moment that holds the most."""
    most: Moment | None = None
    for moment in moments:
        if most is None:
            most = moment
        elif (moment.phase, moment.event // every) != (most.phase, most.event // every):
            yield most
            most = moment
        elif _weight(moment) > _weight(most):
            most = moment
    if most is not None:
        yield most


def _weight(moment: Moment) -> tuple[int, int]:
    """All that is held; where that is the same, what tensors take of it."""
    return moment.num_bytes, moment.num_bytes - moment.parts.get(FRAGMENTATION, 0)


def _peaks(moments: Sequence[Moment]) -> Iterator[Moment]:
    for phase in dict.fromkeys(moment.phase for moment in moments):
        inside = [moment for moment in moments if moment.phase is phase]
        yield max(inside, key=_weight)
