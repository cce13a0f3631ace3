"""Sizes in CUDA's caching allocator: of the block for a request, of the segment for a block.

Source: torch 2.13, `c10/core/AllocatorConfig.h` and `c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from search.units import KIB, MIB

BLOCK_BYTES = 512
"""Every block is a multiple of it. Source: `kMinBlockSize`."""
SMALL_BYTES = 1024 * KIB
"""The largest block of the small pool. Source: `kSmallSize`."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""Source: `kSmallBuffer`."""
UNBOUNDED_BYTES = 2**60
"""Stands for no limit; a segment's addresses fit beside it."""
_OWN_SEGMENT_BYTES = 10 * MIB
"""From here on a block gets a segment of its own. Source: `kMinLargeAlloc`."""
_OWN_SEGMENT_STEP_BYTES = 2 * MIB
"""Such a segment is a multiple of it. Source: `kRoundLarge`."""
_FIRST_INTERVAL_LOG2 = 20
"""The first number of divisions is for sizes below 2 MiB. Source: `kRoundUpPowerOfTwoStart`."""


def rounded_bytes(num_bytes: int, divisions: tuple[int, ...]) -> int:
    """The size of the block for a request. Source: `round_size`, `roundup_power2_next_division`.

    Args:
        num_bytes: the request, above 0.
        divisions: as in `AllocatorSettings.roundup_power2_divisions`.
    """
    log2 = num_bytes.bit_length() - 1
    number = divisions[min(max(log2 - _FIRST_INTERVAL_LOG2, 0), len(divisions) - 1)]
    step = BLOCK_BYTES
    if number > 1 and num_bytes > BLOCK_BYTES * number:
        step = (1 << log2) // number
    return -(-num_bytes // step) * step


def segment_bytes(size_bytes: int, large_segment_bytes: int) -> int:
    """What is asked of the driver for a block of `size_bytes`. Source: `get_allocation_size`."""
    if size_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < _OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return -(-size_bytes // _OWN_SEGMENT_STEP_BYTES) * _OWN_SEGMENT_STEP_BYTES
