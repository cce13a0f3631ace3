"""The pieces CUDA's caching allocator works with: blocks, pools of free ones, device memory.

Source: torch 2.13, `c10/cuda/CUDACachingAllocator.cpp` (`Block`, `BlockPool`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import StrEnum

KEY_SHIFT = 64
"""A key is the size, then the address: the order in which free blocks are searched."""
_HIGHEST_ADDRESS = 1 << (KEY_SHIFT - 1)


class Block:
    """A range of a segment: in use, free, or (expandable segments) without memory behind it."""

    __slots__ = (
        "address",
        "after",
        "before",
        "born",
        "is_free",
        "is_mapped",
        "pool",
        "requested_bytes",
        "segment_address",
        "size_bytes",
    )

    def __init__(
        self, address: int, size_bytes: int, pool: BlockPool, segment_address: int
    ) -> None:
        """A mapped block that is neither free nor linked to a neighbour."""
        self.address = address
        self.size_bytes = size_bytes
        self.pool = pool
        self.segment_address = segment_address
        self.requested_bytes = 0
        self.is_free = False
        self.is_mapped = True
        self.before: Block | None = None
        self.after: Block | None = None
        self.born = 0

    @property
    def is_split(self) -> bool:
        """Whether other blocks share the segment."""
        return self.before is not None or self.after is not None

    def cut(self, size_bytes: int) -> Block:
        """The rest behind the first `size_bytes`, linked in, as mapped as this one, not free."""
        rest = Block(
            self.address + size_bytes, self.size_bytes - size_bytes, self.pool, self.segment_address
        )
        rest.is_mapped = self.is_mapped
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.after, self.size_bytes = rest, size_bytes
        return rest

    def swallow(self, neighbour: Block) -> None:
        """Grows over a neighbour that is in no pool any more."""
        self.size_bytes += neighbour.size_bytes
        if neighbour is self.before:
            self.address, self.before = neighbour.address, neighbour.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = neighbour.after
            if self.after is not None:
                self.after.before = self


class BlockPool:
    """Free blocks by size, then address; of expandable segments also unmapped ones by address.

    `keys` and `blocks` run side by side.
    """

    __slots__ = ("blocks", "is_small", "keys", "num_searches", "unmapped", "unmapped_addresses")

    def __init__(self, *, is_small: bool) -> None:
        """An empty pool."""
        self.is_small = is_small
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped_addresses: list[int] = []
        self.unmapped: dict[int, Block] = {}
        self.num_searches = 0

    def insert(self, block: Block) -> None:
        """Adds a mapped block as free."""
        block.is_free, block.born = True, self.num_searches
        key = block.size_bytes << KEY_SHIFT | block.address
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        """Takes a free block out."""
        self.take(bisect_left(self.keys, block.size_bytes << KEY_SHIFT | block.address))

    def take(self, index: int) -> Block:
        """Takes the block out that stands at a place among `keys`."""
        del self.keys[index]
        block = self.blocks.pop(index)
        block.is_free = False
        return block

    def insert_unmapped(self, block: Block) -> None:
        """Adds a range without memory."""
        block.is_mapped = False
        insort(self.unmapped_addresses, block.address)
        self.unmapped[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        """Takes a range without memory out."""
        del self.unmapped_addresses[bisect_left(self.unmapped_addresses, block.address)]
        del self.unmapped[block.address]

    def in_order(self) -> list[Block]:
        """The free blocks as they are now, the smallest first."""
        return [*self.blocks]


class SegmentOrder(StrEnum):
    """Where the driver puts a new segment: above those handed out before, or below them.

    Of equally large free blocks the lowest is taken. No document says which order it is; new ranges
    of a process lie below earlier ones on Linux, and of the runs of an A100 in
    `benchmarks/results/memory_accuracy.md` that hang on it, those predicted to the MiB are so with
    `DOWNWARDS`.
    """

    UPWARDS = "upwards"
    DOWNWARDS = "downwards"


class DeviceMemory:
    """What the driver hands out: bytes up to a capacity, at addresses in one order.

    The reserved bytes are what CUDA has given. Addresses are not the real ones: of equally large
    blocks, the one whose segment came first counts as the lower, or downwards as the higher.
    """

    __slots__ = (
        "_next_address",
        "_segment_order",
        "capacity_bytes",
        "peak_reserved_bytes",
        "reserved_bytes",
    )

    def __init__(
        self, capacity_bytes: int, segment_order: SegmentOrder = SegmentOrder.DOWNWARDS
    ) -> None:
        """Nothing is handed out yet."""
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self._segment_order = segment_order
        self._next_address = 0 if segment_order is SegmentOrder.UPWARDS else _HIGHEST_ADDRESS

    def addresses(self, num_bytes: int) -> int:
        """The start of a range of addresses that nobody has had before."""
        if self._segment_order is SegmentOrder.DOWNWARDS:
            self._next_address -= num_bytes
            return self._next_address
        address = self._next_address
        self._next_address += num_bytes
        return address

    def take(self, num_bytes: int) -> bool:
        """Whether so many bytes were left; if so they are reserved now."""
        if self.reserved_bytes + num_bytes > self.capacity_bytes:
            return False
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def give_back(self, num_bytes: int) -> None:
        """Returns reserved bytes to the driver."""
        self.reserved_bytes -= num_bytes
