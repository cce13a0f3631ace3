"""From a trace to what a device must hold: a CPU's resident set, a GPU's segments and context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from search.memory.allocator import CachingAllocator, simulate
from search.memory.allocator_blocks import SegmentOrder
from search.memory.allocator_settings import AllocatorSettings, allocator_settings_of
from search.memory.cuda import Cuda
from search.memory.device import ByteEstimate, WorkspaceBytes
from search.memory.target import Cpu, Target
from search.memory.trace import Event, Phase, Trace
from search.results import PredictedMemory

OVERHEAD, FRAGMENTATION, CONTEXT = "overhead", "fragmentation", "context"
"""Parts of a prediction that are no tensors."""
_PAGE_BYTES = 4096
_LARGEST_HEAP_BYTES = 128 * 1024
"""Tensors below this size share the C library's heap, whose holes may not fit the next one."""


class Machine(Protocol):
    """What decides, beside the tensors, how much memory a run takes."""

    def target(self) -> Target:
        """What to trace for."""
        ...

    def predicted(self, traced: Trace) -> PredictedMemory:
        """The peak of a traced run, with the bounds that its mechanism leaves."""
        ...

    def completes(self, traced: Trace, capacity_bytes: int) -> bool:
        """Whether the run ends well where it can have no more than `capacity_bytes`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuMemory:
    """The resident set of a process on this CPU.

    `overhead_bytes` is the machine's one constant, see `search.memory.measurement`.
    """

    overhead_bytes: int

    def target(self) -> Target:
        """The CPU."""
        return Cpu()

    def predicted(self, traced: Trace) -> PredictedMemory:
        """The traced peak plus the constant, and between which bounds it must lie.

        The constant may be missing, once more for room already resident, or be there twice. At
        most there are, besides, a page before and after each tensor, and the small tensors a
        second time for the holes between them.
        """
        expected_bytes = traced.peak_bytes + self.overhead_bytes
        return PredictedMemory(
            expected_bytes=expected_bytes,
            low_bytes=max(0, traced.peak_bytes - self.overhead_bytes),
            high_bytes=expected_bytes + self.overhead_bytes + _rounding_bytes(traced),
            phase=traced.peak_phase.value,
            parts={**traced.parts, OVERHEAD: self.overhead_bytes},
            allocated_bytes=traced.peak_bytes,
        )

    def completes(self, traced: Trace, capacity_bytes: int) -> bool:
        """Nothing can be given back here: as predicted."""
        return self.predicted(traced).high_bytes <= capacity_bytes


def _rounding_bytes(traced: Trace) -> int:
    sizes = traced.alive_at_peak
    small_bytes = sum(size for size in sizes if size < _LARGEST_HEAP_BYTES)
    return 2 * _PAGE_BYTES * len(sizes) + small_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """What a process takes of a GPU: the segments that torch reserves, and the CUDA context.

    `settings` are by default those that torch would read from this process's environment,
    `workspaces` of cuBLAS those that torch's source names.
    """

    architecture: tuple[int, int]
    context: ByteEstimate
    workspaces: WorkspaceBytes | None = None
    settings: AllocatorSettings = field(default_factory=allocator_settings_of)

    def target(self) -> Target:
        """A GPU of this architecture."""
        return Cuda(architecture=self.architecture, workspaces=self.workspaces)

    def predicted(self, traced: Trace) -> PredictedMemory:
        """The most that is reserved, where there is room, plus the context.

        The bounds are those of the context, of cuDNN's workspaces, whose sizes nobody names, and of
        the order in which the driver hands out segments, which decides where blocks come to lie.
        The phase is the first that reserves the most; the parts are what was allocated at its
        own peak, and what is reserved beyond it.
        """
        used = reserved(traced.events, self.settings)
        expected_bytes = used.reserved_bytes + self.context.expected_bytes
        either = used.reserved_bytes, self._reserved_upwards(traced)
        below, above, _ = traced.unsure
        return PredictedMemory(
            expected_bytes=expected_bytes,
            low_bytes=max(0, min(either) + self.context.low_bytes - below),
            high_bytes=max(either) + self.context.high_bytes + above,
            phase=used.phase.value,
            parts={
                **traced.parts,
                FRAGMENTATION: used.reserved_bytes - traced.peak_bytes,
                CONTEXT: self.context.expected_bytes,
            },
            allocated_bytes=used.allocated_bytes,
            reserved_bytes=used.reserved_bytes,
        )

    def _reserved_upwards(self, traced: Trace) -> int:
        """What is reserved where each new segment lies above the last."""
        found = simulate(
            _blocks(traced), settings=self.settings, segment_order=SegmentOrder.UPWARDS
        )
        return found.peak_reserved_bytes

    def completes(self, traced: Trace, capacity_bytes: int) -> bool:
        """Whether torch finds room for every block, if need be by giving cached segments back."""
        segments_bytes = capacity_bytes - self.context.high_bytes - traced.unsure.above_bytes
        if segments_bytes <= 0:
            return False
        return not simulate(
            _blocks(traced), settings=self.settings, capacity_bytes=segments_bytes
        ).out_of_memory


def _blocks(traced: Trace) -> Iterator[tuple[int, int]]:
    return ((event.storage, event.num_bytes) for event in traced.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The peaks of torch's allocator over a run, in the statistics torch prints.

    `phase` is the first in which `reserved_bytes` was reached, which stays reserved from then on.
    """

    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    inactive_split_bytes: int
    phase: Phase
    by_phase: Mapping[Phase, int]


def reserved(events: Iterable[Event], settings: AllocatorSettings) -> Reserved:
    """What torch's allocator reserves for the events of a run where memory does not run out."""
    allocator = CachingAllocator(settings)
    by_phase: dict[Phase, int] = {}
    phase = Phase.MODEL_CREATION
    for event in events:
        if event.phase is not phase:
            by_phase[phase] = allocator.statistics().peak_reserved_bytes
            phase = event.phase
        if event.num_bytes > 0:
            allocator.malloc(event.storage, event.num_bytes)
        else:
            allocator.free(event.storage)
    found = allocator.statistics()
    by_phase[phase] = found.peak_reserved_bytes
    return Reserved(
        reserved_bytes=found.peak_reserved_bytes,
        allocated_bytes=found.peak_allocated_bytes,
        requested_bytes=found.peak_requested_bytes,
        inactive_split_bytes=found.peak_inactive_split_bytes,
        phase=next(p for p, size in by_phase.items() if size == found.peak_reserved_bytes),
        by_phase=by_phase,
    )
