"""A recorded history of CUDA's caching allocator, replayed on the simulated one.

The history is what torch keeps after `torch.cuda.memory._record_memory_history()`. It must begin
with nothing allocated, and come from one CUDA stream.

Source: torch's `torch/cuda/memory.py`, `_snapshot`, for the entries of a history;
`c10/cuda/CUDACachingAllocator.cpp`, `alloc_found_block` and `free_block`, for what their sizes are:
what was asked for.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from search.errors import InputError
from search.memory.allocator import CachingAllocator
from search.memory.allocator_blocks import DeviceMemory
from search.memory.allocator_settings import AllocatorSettings
from search.memory.allocator_sizes import UNBOUNDED_BYTES
from search.memory.allocator_statistics import AllocatorStatistics
from search.memory.events import Event

_DEFAULTS = AllocatorSettings()
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_REQUESTS = {"alloc": 1, "free_completed": -1}


class Step(NamedTuple):
    """One entry of a history: what the allocator did, where, with how many bytes asked for."""

    action: str
    address: int
    num_bytes: int


class Sample(NamedTuple):
    """What torch's statistics said after so many allocations and frees since the beginning."""

    num_allocs: int
    num_frees: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How far the simulated allocator went with the recorded one.

    `difference` is the first, in words; None where both agreed to the end. `statistics` are the
    simulated ones where the replay ended.
    """

    num_events: int
    num_samples: int
    difference: str | None
    statistics: AllocatorStatistics


def steps_of(snapshot: Mapping[str, Any], device_index: int = 0) -> list[Step]:
    """The history of one device in a snapshot.

    Raises:
        InputError: where the snapshot has none.
    """
    traces = snapshot.get("device_traces") or []
    if device_index >= len(traces) or not traces[device_index]:
        msg = (
            f"the snapshot has no history of device {device_index} "
            "(call torch.cuda.memory._record_memory_history() before the run)"
        )
        raise InputError(msg)
    return [
        Step(entry["action"], entry.get("addr", 0), entry["size"])
        for entry in traces[device_index]
        if entry["action"] in _RESERVES or entry["action"] in _REQUESTS
    ]


def replay(
    steps: Sequence[Step],
    *,
    samples: Iterable[Sample] = (),
    settings: AllocatorSettings = _DEFAULTS,
) -> Replay:
    """Compares requested and reserved bytes and each block's place after every event.

    Allocated bytes, which a history does not tell, are compared where there is a sample.

    Args:
        steps: the history.
        samples: torch's statistics on the way, in order.
        settings: how the recorded allocator was set up.
    """
    player = _Player(steps, samples, settings)
    difference = next(player.differences(), None)
    return Replay(
        num_events=player.num_events,
        num_samples=player.num_samples,
        difference=difference,
        statistics=player.allocator.statistics(),
    )


class _RecordedMemory(DeviceMemory):
    """Hands out the addresses that were recorded: equally large blocks are ordered by address."""

    __slots__ = ("_recorded",)

    def __init__(self, recorded: Iterable[int]) -> None:
        super().__init__(UNBOUNDED_BYTES)
        self._recorded = deque(recorded)

    def addresses(self, num_bytes: int) -> int:
        return self._recorded.popleft() if self._recorded else super().addresses(num_bytes)


class _Player:
    def __init__(
        self, steps: Sequence[Step], samples: Iterable[Sample], settings: AllocatorSettings
    ) -> None:
        self.allocator = CachingAllocator(settings)
        self.num_events = self.num_samples = 0
        self._steps = steps
        self._samples = deque(samples)
        self._compares_places = not settings.expandable_segments
        if self._compares_places:
            segments = (step.address for step in steps if step.action == "segment_alloc")
            self.allocator._memory = _RecordedMemory(segments)  # noqa: SLF001 - the only seam
        self._ids: dict[int, int] = {}
        self._num_allocs = self._num_frees = 0
        self._requested_bytes = self._reserved_bytes = 0

    def differences(self) -> Iterator[str]:
        """Where the two part, in words, event by event."""
        for step, following in itertools.zip_longest(self._steps, self._steps[1:]):
            self._reserved_bytes += _RESERVES.get(step.action, 0) * step.num_bytes
            self._requested_bytes += _REQUESTS.get(step.action, 0) * step.num_bytes
            found = self._played(step, following)
            if found is not None:
                yield f"event {self.num_events} ({step.action} of {step.num_bytes:,} B): {found}"
            self.num_events += 1

    def _played(self, step: Step, following: Step | None) -> str | None:
        if step.action == "segment_free":
            if following is not None and following.action == "segment_free":
                return None  # one after another, they are released in one call
            self.allocator.empty_cache()
            return self._unequal()
        if step.action not in _REQUESTS:
            return None  # counted; compared after the block it is for
        place = self._allocated(step) if step.action == "alloc" else self._freed(step)
        return place or self._unequal() or self._unequal_sample()

    def _allocated(self, step: Step) -> str | None:
        number = self._num_allocs
        self._ids[step.address] = number
        self._num_allocs += 1
        self.allocator.malloc(number, step.num_bytes)
        address = self.allocator._live[number].address  # noqa: SLF001 - no statistic tells it
        if self._compares_places and address != step.address:
            return f"the block lies at {step.address:#x}, simulated at {address:#x}"
        return None

    def _freed(self, step: Step) -> str | None:
        number = self._ids.pop(step.address, None)
        if number is None:
            return "a block goes that came before the history began"
        self._num_frees += 1
        self.allocator.free(number)
        return None

    def _unequal(self) -> str | None:
        now = self.allocator.statistics()
        pairs = (
            ("requested", self._requested_bytes, now.requested_bytes),
            ("reserved", self._reserved_bytes, now.reserved_bytes),
        )
        return _first_unequal(pairs)

    def _unequal_sample(self) -> str | None:
        while self._samples and self._samples[0][:2] <= (self._num_allocs, self._num_frees):
            sample = self._samples.popleft()
            if sample[:2] != (self._num_allocs, self._num_frees):
                continue  # nothing happened since the one before
            self.num_samples += 1
            now = self.allocator.statistics()
            pairs = (
                ("requested", sample.requested_bytes, now.requested_bytes),
                ("allocated", sample.allocated_bytes, now.allocated_bytes),
                ("reserved", sample.reserved_bytes, now.reserved_bytes),
            )
            if (found := _first_unequal(pairs)) is not None:
                return found
        return None


def _first_unequal(pairs: Iterable[tuple[str, int, int]]) -> str | None:
    return next(
        (
            f"{name} {recorded:,} B, simulated {simulated:,} B"
            for name, recorded, simulated in pairs
            if recorded != simulated
        ),
        None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many of the allocations that were traced came as recorded, and the first that did not."""

    num_equal: int
    num_traced: int
    num_recorded: int
    difference: str | None


def agreement(events: Iterable[Event], steps: Iterable[Step]) -> Agreement:
    """Compares the sizes asked for, in order: traced without a GPU, and recorded on it."""
    traced = [event for event in events if event.num_bytes > 0]
    recorded = [step.num_bytes for step in steps if step.action == "alloc"]
    num_equal = next(
        (
            index
            for index, (event, num_bytes) in enumerate(zip(traced, recorded, strict=False))
            if event.num_bytes != num_bytes
        ),
        min(len(traced), len(recorded)),
    )
    difference = None
    if num_equal < max(len(traced), len(recorded)):
        difference = f"allocation {num_equal}: {_told(traced, recorded, num_equal)}"
    return Agreement(
        num_equal=num_equal,
        num_traced=len(traced),
        num_recorded=len(recorded),
        difference=difference,
    )


def _told(traced: Sequence[Event], recorded: Sequence[int], index: int) -> str:
    left = right = "nothing"
    if index < len(traced):
        event = traced[index]
        left = f"{event.num_bytes:,} B by {event.operator} in {event.phase.value}"
    if index < len(recorded):
        right = f"{recorded[index]:,} B"
    return f"traced {left}, recorded {right}"
