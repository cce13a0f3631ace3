"""What CUDA's caching allocator counts, and how it says that memory ran out.

Source: torch 2.13, `c10/core/CachingDeviceAllocator.h` (`DeviceStats`).
"""

from __future__ import annotations

from dataclasses import dataclass

from search.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The allocation that could not be served, with the figures torch's message gives.

    `tried_bytes` is the segment asked of the driver (torch's "tried to allocate"), `limit_bytes`
    what may be reserved at most.
    """

    block_id: int
    requested_bytes: int
    tried_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int

    @property
    def unallocated_bytes(self) -> int:
        """Bytes reserved but in no block: fragmentation, when it is large."""
        return self.reserved_bytes - self.allocated_bytes

    def __str__(self) -> str:
        """The figures in a line, for the screen."""
        return (
            f"no {format_bytes(self.tried_bytes)} left within {format_bytes(self.limit_bytes)}: "
            f"{format_bytes(self.allocated_bytes)} allocated, "
            f"{format_bytes(self.unallocated_bytes)} reserved but unallocated"
        )


class OutOfDeviceMemoryError(Exception):
    """Raised by `malloc`; the allocator stays usable, as torch's does."""

    def __init__(self, out_of_memory: OutOfMemory) -> None:
        """Keeps the figures."""
        self.out_of_memory = out_of_memory
        super().__init__(str(out_of_memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStatistics:
    """What `torch.cuda.memory_stats` would say: bytes now, and the most since the last reset.

    Requested is what was asked for, allocated the blocks handed out for it, reserved the segments;
    inactive split is free but shares its segment with a block in use (0 with expandable segments,
    where torch leaves it out). `out_of_memory` is the allocation a simulated stream ended at.
    """

    requested_bytes: int
    peak_requested_bytes: int
    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    inactive_split_bytes: int
    peak_inactive_split_bytes: int
    num_alloc_retries: int
    num_ooms: int
    out_of_memory: OutOfMemory | None = None
