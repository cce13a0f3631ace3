"""Expandable segments: addresses reserved once, memory mapped behind them page by page.

Source: torch 2.13, `c10/cuda/CUDACachingAllocator.cpp` (`ExpandableSegment`,
`find_expandable_block`, `map_block`, `try_allocate_expandable_block`, `unmap_block`).
"""

from __future__ import annotations

from search.memory.allocator_blocks import Block, BlockPool, DeviceMemory
from search.memory.allocator_sizes import SMALL_SEGMENT_BYTES


class ExpandableSegments:
    """Maps memory for blocks that no free block can hold, and unmaps what is free."""

    __slots__ = ("_address_bytes", "_large_page_bytes", "_memory")

    def __init__(self, memory: DeviceMemory, *, total_bytes: int, large_page_bytes: int) -> None:
        """Every segment spans an eighth more addresses than the device has bytes."""
        self._memory = memory
        self._address_bytes = total_bytes + total_bytes // 8
        self._large_page_bytes = large_page_bytes

    def allocate(self, pool: BlockPool, size_bytes: int) -> Block | None:
        """A mapped block of at least `size_bytes`, in no pool; None where memory is short.

        What was mapped before memory ran short stays, as free.
        """
        block = self._lowest_room(pool, size_bytes)
        if not block.is_mapped and not self._map(block, min(block.size_bytes, size_bytes)):
            return None
        while block.size_bytes < size_bytes:
            beyond = block.after
            assert beyond is not None  # noqa: S101  there was room for all of it
            if not self._map(beyond, min(size_bytes - block.size_bytes, beyond.size_bytes)):
                return None
            block = beyond
        pool.remove(block)
        return block

    def release(self, pool: BlockPool) -> None:
        """Unmaps every page that holds nothing in use; drops segments without a mapped page."""
        for block in pool.in_order():
            unmapped = self._unmap(block)
            if unmapped is not None and not unmapped.is_split:
                pool.remove_unmapped(unmapped)

    def _page_bytes(self, pool: BlockPool) -> int:
        return SMALL_SEGMENT_BYTES if pool.is_small else self._large_page_bytes

    def _lowest_room(self, pool: BlockPool, size_bytes: int) -> Block:
        for address in pool.unmapped_addresses:
            block = pool.unmapped[address]
            if block.before is not None and block.before.is_free:
                block = block.before
            if _has_room(block, size_bytes):
                return block
        return self._new_segment(pool)

    def _new_segment(self, pool: BlockPool) -> Block:
        page_bytes = self._page_bytes(pool)
        num_bytes = -(-self._address_bytes // page_bytes) * page_bytes
        address = self._memory.addresses(num_bytes)
        block = Block(address, num_bytes, pool, address)
        pool.insert_unmapped(block)
        return block

    def _map(self, block: Block, num_bytes: int) -> bool:
        pool, page_bytes = block.pool, self._page_bytes(block.pool)
        mapped_bytes = -(-num_bytes // page_bytes) * page_bytes
        if not self._memory.take(mapped_bytes):
            return False
        pool.remove_unmapped(block)
        if mapped_bytes < block.size_bytes:
            pool.insert_unmapped(block.cut(mapped_bytes))
        block.is_mapped = True
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                pool.remove(neighbour)
                block.swallow(neighbour)
        pool.insert(block)
        return True

    def _unmap(self, block: Block) -> Block | None:
        """The range that lost its memory; None where the free block holds no whole page."""
        pool, page_bytes = block.pool, self._page_bytes(block.pool)
        offset = block.address - block.segment_address
        start = -(-offset // page_bytes) * page_bytes
        num_bytes = (offset + block.size_bytes) // page_bytes * page_bytes - start
        if num_bytes <= 0:
            return None
        pool.remove(block)
        if start > offset:
            rest = block.cut(start - offset)
            pool.insert(block)
            block = rest
        if block.size_bytes > num_bytes:
            pool.insert(block.cut(num_bytes))
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.is_mapped:
                pool.remove_unmapped(neighbour)
                block.swallow(neighbour)
        pool.insert_unmapped(block)
        self._memory.give_back(num_bytes)
        return block


def _has_room(block: Block | None, size_bytes: int) -> bool:
    room_bytes = 0
    while room_bytes < size_bytes and block is not None and (block.is_free or not block.is_mapped):
        room_bytes += block.size_bytes
        block = block.after
    return room_bytes >= size_bytes


def least_expandable(pool: BlockPool, index: int) -> int:
    """Where the search for the best fit ends that starts at `index`, the smallest that fits.

    A block before unmapped addresses counts with them, since it can grow: the last that growth
    makes huge is taken late. Source: `get_free_block`.
    """
    num_bytes = _expandable_bytes(pool, index)
    while index + 1 < len(pool.blocks):
        next_bytes = _expandable_bytes(pool, index + 1)
        if next_bytes >= num_bytes:
            break
        index, num_bytes = index + 1, next_bytes
    return index


def _expandable_bytes(pool: BlockPool, index: int) -> int:
    block = pool.blocks[index]
    after = block.after
    if after is None or after.is_mapped:
        return block.size_bytes
    return block.size_bytes + after.size_bytes
