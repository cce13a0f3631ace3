"""CUDA's caching allocator, simulated: what it reserves for a stream of allocations and frees.

One device, one CUDA stream: blocks used on several streams, CUDA graphs and user pools are left
out, and with them all waiting for events.

Source: torch 2.13, `c10/cuda/CUDACachingAllocator.cpp` (`DeviceCachingAllocator`), read rule by
rule; the functions named below are its. It is one class there, and so it is here, whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from search.memory.allocator_blocks import (
    KEY_SHIFT,
    Block,
    BlockPool,
    DeviceMemory,
    SegmentOrder,
)
from search.memory.allocator_expandable import ExpandableSegments, least_expandable
from search.memory.allocator_settings import AllocatorSettings
from search.memory.allocator_sizes import (
    BLOCK_BYTES,
    SMALL_BYTES,
    UNBOUNDED_BYTES,
    rounded_bytes,
    segment_bytes,
)
from search.memory.allocator_statistics import (
    AllocatorStatistics,
    OutOfDeviceMemoryError,
    OutOfMemory,
)

_DEFAULTS = AllocatorSettings()


def simulate(
    events: Iterable[tuple[int, int]],
    *,
    settings: AllocatorSettings = _DEFAULTS,
    capacity_bytes: int | None = None,
    total_bytes: int | None = None,
    segment_order: SegmentOrder = SegmentOrder.DOWNWARDS,
) -> AllocatorStatistics:
    """The statistics after a stream of events, which ends at the first that finds no memory.

    Args:
        events: a block's id with its bytes to allocate it, with minus its bytes or 0 to free it;
            an empty tensor has no block and no event.
        settings: how the allocator is set up.
        capacity_bytes: see `CachingAllocator`.
        total_bytes: see `CachingAllocator`.
        segment_order: see `CachingAllocator`.
    """
    allocator = CachingAllocator(
        settings,
        capacity_bytes=capacity_bytes,
        total_bytes=total_bytes,
        segment_order=segment_order,
    )
    malloc, free = allocator.malloc, allocator.free
    try:
        for block_id, num_bytes in events:
            if num_bytes > 0:
                malloc(block_id, num_bytes)
            else:
                free(block_id)
    except OutOfDeviceMemoryError as error:
        return allocator.statistics(out_of_memory=error.out_of_memory)
    return allocator.statistics()


class CachingAllocator:
    """Serves blocks from cached segments as torch would, and counts.

    Between events the peaks can be read and reset, so that each phase of a run has its own.
    """

    def __init__(
        self,
        settings: AllocatorSettings = _DEFAULTS,
        *,
        capacity_bytes: int | None = None,
        total_bytes: int | None = None,
        segment_order: SegmentOrder = SegmentOrder.DOWNWARDS,
    ) -> None:
        """An allocator that has reserved nothing.

        Args:
            settings: how it is set up.
            capacity_bytes: the most the driver can give to segments: the device's memory without
                the context and what others hold. None for no limit.
            total_bytes: the device's whole memory, of which `per_process_memory_fraction` may be
                reserved; `capacity_bytes` where not given.
            segment_order: where the driver puts new segments; it decides which of equally large
                free blocks is taken. Expandable segments are few, and always go upwards.
        """
        if total_bytes is None:
            total_bytes = UNBOUNDED_BYTES if capacity_bytes is None else capacity_bytes
        fraction = settings.per_process_memory_fraction
        self._settings = settings
        self._allowed_bytes = UNBOUNDED_BYTES if fraction == 1 else int(fraction * total_bytes)
        self._collects = fraction < 1 and settings.garbage_collection_threshold > 0
        self._max_split_bytes = (
            UNBOUNDED_BYTES if settings.max_split_bytes is None else settings.max_split_bytes
        )
        self._rounds_to_divisions = max(settings.roundup_power2_divisions) > 1
        self._memory = DeviceMemory(
            UNBOUNDED_BYTES if capacity_bytes is None else capacity_bytes,
            SegmentOrder.UPWARDS if settings.expandable_segments else segment_order,
        )
        self._expandable: ExpandableSegments | None = None
        if settings.expandable_segments:
            self._expandable = ExpandableSegments(
                self._memory,
                total_bytes=total_bytes,
                large_page_bytes=settings.large_segment_bytes,
            )
        self._small, self._large = BlockPool(is_small=True), BlockPool(is_small=False)
        self._live: dict[int, Block] = {}
        self._requested_bytes = self._allocated_bytes = self._inactive_bytes = 0
        self._num_alloc_retries = self._num_ooms = 0
        self.reset_peak()

    def reset_peak(self) -> None:
        """Lets each peak start again from what there is now."""
        self._peak_requested_bytes = self._requested_bytes
        self._peak_allocated_bytes = self._allocated_bytes
        self._peak_inactive_bytes = self._inactive_bytes
        self._memory.peak_reserved_bytes = self._memory.reserved_bytes

    def statistics(self, *, out_of_memory: OutOfMemory | None = None) -> AllocatorStatistics:
        """The statistics as they are now."""
        counts_inactive = self._expandable is None
        return AllocatorStatistics(
            requested_bytes=self._requested_bytes,
            peak_requested_bytes=self._peak_requested_bytes,
            allocated_bytes=self._allocated_bytes,
            peak_allocated_bytes=self._peak_allocated_bytes,
            reserved_bytes=self._memory.reserved_bytes,
            peak_reserved_bytes=self._memory.peak_reserved_bytes,
            inactive_split_bytes=self._inactive_bytes if counts_inactive else 0,
            peak_inactive_split_bytes=self._peak_inactive_bytes if counts_inactive else 0,
            num_alloc_retries=self._num_alloc_retries,
            num_ooms=self._num_ooms,
            out_of_memory=out_of_memory,
        )

    def malloc(self, block_id: int, num_bytes: int) -> None:
        """Allocates `num_bytes`, above 0. Source: `malloc`, `alloc_found_block`.

        Raises:
            OutOfDeviceMemoryError: where nothing is left, after all that could be released was.
        """
        if block_id in self._live:
            msg = f"block {block_id} is allocated already"
            raise ValueError(msg)
        if self._rounds_to_divisions:
            size_bytes = rounded_bytes(num_bytes, self._settings.roundup_power2_divisions)
        else:
            size_bytes = (num_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        pool = self._small if size_bytes <= SMALL_BYTES else self._large
        block = self._cached(pool, size_bytes)
        if block is None:
            block = self._new(pool, size_bytes)
            if block is None:
                raise OutOfDeviceMemoryError(self._out_of_memory(block_id, num_bytes, size_bytes))
        inactive_bytes = self._inactive_bytes
        if block.before is not None or block.after is not None:
            inactive_bytes -= block.size_bytes
        if self._splits(block, size_bytes):
            rest = block.cut(size_bytes)
            pool.insert(rest)
            inactive_bytes += rest.size_bytes
        block.requested_bytes = num_bytes
        self._live[block_id] = block
        self._allocated_bytes += block.size_bytes
        if self._allocated_bytes > self._peak_allocated_bytes:  # noqa: PLR1730  twice as fast
            self._peak_allocated_bytes = self._allocated_bytes
        self._requested_bytes += num_bytes
        if self._requested_bytes > self._peak_requested_bytes:  # noqa: PLR1730  twice as fast
            self._peak_requested_bytes = self._requested_bytes
        self._set_inactive(inactive_bytes)

    def free(self, block_id: int) -> None:
        """Puts a block back, grown by its free neighbours. Source: `free_block`.

        Raises:
            KeyError: where no such block is allocated.
        """
        block = self._live.pop(block_id)
        pool, block_bytes = block.pool, block.size_bytes
        inactive_bytes = self._inactive_bytes
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                inactive_bytes -= neighbour.size_bytes
                pool.remove(neighbour)
                block.swallow(neighbour)
        pool.insert(block)
        if block.before is not None or block.after is not None:
            inactive_bytes += block.size_bytes
        self._allocated_bytes -= block_bytes
        self._requested_bytes -= block.requested_bytes
        self._set_inactive(inactive_bytes)

    def empty_cache(self) -> None:
        """Returns every segment that is one free block, and every free page, to the driver."""
        for pool in (self._large, self._small):
            if self._expandable is not None:
                self._expandable.release(pool)
                continue
            for block in pool.in_order():
                if not block.is_split:
                    self._release(block)

    def _set_inactive(self, num_bytes: int) -> None:
        self._inactive_bytes = num_bytes
        if num_bytes > self._peak_inactive_bytes:  # noqa: PLR1730  twice as fast
            self._peak_inactive_bytes = num_bytes

    def _cached(self, pool: BlockPool, size_bytes: int) -> Block | None:
        """The best fit, out of its pool. Source: `get_free_block`."""
        pool.num_searches += 1
        index = bisect_left(pool.keys, size_bytes << KEY_SHIFT)
        if index == len(pool.keys):
            return None
        if self._expandable is not None:
            index = least_expandable(pool, index)
        block = pool.blocks[index]
        if block.size_bytes >= self._max_split_bytes and (
            size_bytes < self._max_split_bytes
            or block.size_bytes >= size_bytes + self._settings.max_non_split_rounding_bytes
        ):
            return None
        return pool.take(index)

    def _splits(self, block: Block, size_bytes: int) -> bool:
        """Source: `should_split`."""
        rest_bytes = block.size_bytes - size_bytes
        if block.pool.is_small or self._expandable is not None:
            return rest_bytes >= BLOCK_BYTES
        return rest_bytes > SMALL_BYTES and size_bytes < self._max_split_bytes

    def _new(self, pool: BlockPool, size_bytes: int) -> Block | None:
        """A block of new memory, releasing what it must. Source: `malloc`."""
        if self._collects:
            self._collect_garbage()
        block = self._reserved(pool, size_bytes)
        if block is None and self._release_oversize(pool, size_bytes):
            block = self._reserved(pool, size_bytes)
        if block is None:
            self.empty_cache()
            self._num_alloc_retries += 1
            block = self._reserved(pool, size_bytes)
        return block

    def _reserved(self, pool: BlockPool, size_bytes: int) -> Block | None:
        """Source: `alloc_block`."""
        num_bytes = segment_bytes(size_bytes, self._settings.large_segment_bytes)
        if self._memory.reserved_bytes + num_bytes > self._allowed_bytes:
            return None
        if self._expandable is not None:
            return self._expandable.allocate(pool, size_bytes)
        if not self._memory.take(num_bytes):
            return None
        address = self._memory.addresses(num_bytes)
        return Block(address, num_bytes, pool, address)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self._memory.give_back(block.size_bytes)

    def _release_oversize(self, pool: BlockPool, size_bytes: int) -> bool:
        """Whether enough oversize blocks went. Source: `release_available_cached_blocks`."""
        if self._settings.max_split_bytes is None or self._expandable is not None:
            return False
        wanted_bytes = max(size_bytes, self._max_split_bytes)
        index = bisect_left(pool.keys, wanted_bytes << KEY_SHIFT)
        blocks = pool.in_order()
        if index < len(blocks):
            self._release(blocks[index])
            return True
        for block in reversed(blocks):
            if wanted_bytes <= 0 or block.size_bytes < self._max_split_bytes:
                break
            wanted_bytes -= block.size_bytes
            self._release(block)
        return wanted_bytes <= 0

    def _collect_garbage(self) -> None:
        """Releases old large segments above the threshold. Source: `garbage_collect_cached_blocks`.

        The age of a block is the number of searches in its pool since it was freed.
        """
        threshold_bytes = int(self._settings.garbage_collection_threshold * self._allowed_bytes)
        target_bytes = self._memory.reserved_bytes - threshold_bytes
        num_searches = self._large.num_searches
        blocks = [block for block in self._large.in_order() if not block.is_split]
        while target_bytes > 0 and blocks:
            mean_age = sum(num_searches - block.born for block in blocks) / len(blocks)
            old = [block for block in blocks if num_searches - block.born >= mean_age]
            for block in old:
                target_bytes -= block.size_bytes
                self._release(block)
            blocks = [block for block in blocks if num_searches - block.born < mean_age]

    def _out_of_memory(self, block_id: int, num_bytes: int, size_bytes: int) -> OutOfMemory:
        self._num_ooms += 1
        return OutOfMemory(
            block_id=block_id,
            requested_bytes=num_bytes,
            tried_bytes=segment_bytes(size_bytes, self._settings.large_segment_bytes),
            allocated_bytes=self._allocated_bytes,
            reserved_bytes=self._memory.reserved_bytes,
            limit_bytes=min(self._allowed_bytes, self._memory.capacity_bytes),
        )
