"""The simulated allocator against sequences worked by hand, and against what must always hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.allocator import CachingAllocator, simulate
from search.memory.allocator_blocks import SegmentOrder
from search.memory.allocator_settings import AllocatorSettings, parse_allocator_settings
from search.memory.allocator_sizes import rounded_bytes, segment_bytes
from search.memory.allocator_statistics import OutOfDeviceMemoryError
from search.units import GIB, MIB

EXPANDABLE = AllocatorSettings(expandable_segments=True)
UNSPLIT_FROM_32_MIB = AllocatorSettings(max_split_bytes=32 * MIB)

SIZES = st.one_of(
    st.sampled_from([1, 512, 513, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB]),
    st.integers(1, 64 * 1024),
    st.integers(MIB // 2, 12 * MIB),
    st.integers(10 * MIB, 60 * MIB),
)
STREAMS = st.lists(SIZES | st.integers(-20, -1), max_size=60)
"""A number above 0 allocates so many bytes, one below frees a live block, counted from the last."""
SETTINGS = st.sampled_from(
    [AllocatorSettings(), EXPANDABLE, UNSPLIT_FROM_32_MIB]
    + [
        parse_allocator_settings(text)
        for text in (
            "roundup_power2_divisions:4",
            "roundup_power2_divisions:[1:2,8:4,>:8],expandable_segments:True",
            "large_segment_size_mb:12,max_split_size_mb:20",
        )
    ]
)


def events_of(stream):
    live = []
    for block_id, number in enumerate(stream):
        if number > 0:
            live.append(block_id)
            yield block_id, number
        elif live:
            yield live.pop(number % -len(live)), 0


@pytest.mark.parametrize(
    ("num_bytes", "block_bytes", "reserved_bytes"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the last of the small pool
        (MIB + 1, MIB + 512, 20 * MIB),  # the first of the large one
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # a segment of its own
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # 2 MiB - 512 remain: split off
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB remains: stays in the block
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # 1 MiB + 512 remain: split off
        (19 * MIB, 20 * MIB, 20 * MIB),
    ],
)
def test_one_block(num_bytes, block_bytes, reserved_bytes):
    statistics = simulate([(7, num_bytes)])
    assert statistics.requested_bytes == num_bytes
    assert statistics.allocated_bytes == block_bytes
    assert statistics.reserved_bytes == reserved_bytes
    assert statistics.inactive_split_bytes == reserved_bytes - block_bytes


def test_a_segment_is_shared_until_it_is_full():
    # 2 MiB hold two blocks of 1 MiB; the third needs the next segment, of which 1 MiB stays free.
    statistics = simulate([(0, MIB), (1, MIB), (2, MIB)])
    assert (statistics.reserved_bytes, statistics.inactive_split_bytes) == (4 * MIB, MIB)


def test_what_remains_of_a_large_segment_goes_to_the_last_block():
    # 20 - 9.5 = 10.5 stay free; 10.5 - 9.5 = 1 is not more than 1 MiB, so the block keeps it.
    half = 19 * MIB // 2
    statistics = simulate([(0, half), (1, half)])
    assert (statistics.requested_bytes, statistics.allocated_bytes) == (19 * MIB, 20 * MIB)
    assert (statistics.reserved_bytes, statistics.inactive_split_bytes) == (20 * MIB, 0)


def test_the_smallest_block_that_is_large_enough_is_taken():
    # Free: segments of 16, 14 and 12. 13 takes 14 whole (1 remains); 12 takes 12; 12 more takes 16
    # and leaves 4; 4 takes that.
    events = [(0, 16 * MIB), (1, 14 * MIB), (2, 12 * MIB), (0, 0), (1, 0), (2, 0)]
    events += [(3, 13 * MIB), (4, 12 * MIB), (5, 12 * MIB)]
    statistics = simulate(events)
    assert statistics.allocated_bytes == (14 + 12 + 12) * MIB
    assert (statistics.reserved_bytes, statistics.inactive_split_bytes) == (42 * MIB, 4 * MIB)
    assert simulate([*events, (6, 4 * MIB)]).inactive_split_bytes == 0


@pytest.mark.parametrize(
    ("order", "reserved_bytes"),
    [(SegmentOrder.UPWARDS, 56 * MIB), (SegmentOrder.DOWNWARDS, 40 * MIB)],
)
def test_of_equally_large_blocks_the_one_at_the_lower_address_is_taken(order, reserved_bytes):
    # Each of two segments of 20 holds 8 and, behind it, 12 free; 5 goes into one of them, and the
    # first segment's 8 is freed. With 5 in the second, the first is whole again and 16 fits into
    # it; with 5 in the first, no more than 12 is free at one place and 16 needs a new segment.
    events = [(0, 8 * MIB), (1, 9 * MIB), (2, 8 * MIB), (3, 9 * MIB), (1, 0), (3, 0)]
    events += [(4, 5 * MIB), (0, 0), (5, 16 * MIB)]
    assert simulate(events, segment_order=order).reserved_bytes == reserved_bytes


class TestVariableShapes:
    """Batches of 10, 12, ... 20 MiB, one after another: no segment serves a longer one."""

    BATCHES = tuple((size, sign * size * MIB) for size in range(10, 21, 2) for sign in (1, -1))

    def test_fragment_what_is_reserved(self):
        statistics = simulate(self.BATCHES)
        assert statistics.peak_allocated_bytes == 20 * MIB
        assert statistics.peak_reserved_bytes == (10 + 12 + 14 + 16 + 18 + 20) * MIB

    def test_take_no_more_than_the_longest_where_it_comes_first(self):
        assert simulate(self.BATCHES[-2:] + self.BATCHES).peak_reserved_bytes == 20 * MIB

    def test_take_no_more_than_the_longest_where_segments_expand(self):
        assert simulate(self.BATCHES, settings=EXPANDABLE).peak_reserved_bytes == 20 * MIB

    def test_find_room_though_twice_as_much_is_reserved_where_there_is_more(self):
        statistics = simulate(self.BATCHES, capacity_bytes=40 * MIB)
        assert statistics.out_of_memory is None
        assert statistics.num_alloc_retries == 2  # before 16, and before 20

    def test_leave_half_of_a_segment_that_nothing_fits_into(self):
        # Of 20 MiB twice 8 are free, with 2 in use between: 9 need a new segment (pytorch #35901).
        events = [(0, 8 * MIB), (1, 2 * MIB), (2, 8 * MIB), (3, 2 * MIB), (0, 0), (2, 0)]
        statistics = simulate([*events, (4, 9 * MIB)], capacity_bytes=30 * MIB)
        assert statistics.out_of_memory is not None
        assert statistics.out_of_memory.unallocated_bytes == 16 * MIB


def test_free_neighbours_become_one_block():
    # 20 MiB hold 4, 4, 4 and 8 free. Without the outer two, 4 and 12 are free round one of 4: too
    # little for 15, which opens 16. Without the middle one all 20 are whole again.
    allocator = CachingAllocator()
    for block_id in range(3):
        allocator.malloc(block_id, 4 * MIB)
    allocator.free(0)
    allocator.free(2)
    assert allocator.statistics().inactive_split_bytes == 16 * MIB
    allocator.malloc(3, 15 * MIB)
    assert allocator.statistics().reserved_bytes == 36 * MIB
    allocator.free(1)
    assert allocator.statistics().inactive_split_bytes == 0
    allocator.malloc(4, 20 * MIB)
    assert allocator.statistics().reserved_bytes == 36 * MIB


def test_a_segment_goes_back_only_when_it_is_one_free_block():
    allocator = CachingAllocator()
    allocator.malloc(0, 4 * MIB)
    allocator.malloc(1, 4 * MIB)
    allocator.malloc(2, 1)
    allocator.free(0)
    allocator.free(2)
    allocator.empty_cache()
    assert allocator.statistics().reserved_bytes == 20 * MIB  # the 2 MiB of the small pool went
    allocator.free(1)
    allocator.empty_cache()
    assert allocator.statistics().reserved_bytes == 0


def test_at_capacity_cached_segments_are_released_and_the_driver_is_asked_again():
    # 16 cached + 20 > 30: the 16 go back first, so at most 20 were ever reserved.
    statistics = simulate([(0, 16 * MIB), (0, -16 * MIB), (1, 20 * MIB)], capacity_bytes=30 * MIB)
    assert (statistics.reserved_bytes, statistics.peak_reserved_bytes) == (20 * MIB, 20 * MIB)
    assert (statistics.num_alloc_retries, statistics.num_ooms) == (1, 0)
    assert statistics.out_of_memory is None


def test_out_of_memory_carries_the_figures_of_the_message():
    # 20 reserved for 8; 12 free are too little for 13, whose segment of 14 is over 30.
    statistics = simulate([(0, 8 * MIB), (1, 13 * MIB), (2, 1)], capacity_bytes=30 * MIB)
    failure = statistics.out_of_memory
    assert failure is not None
    assert (failure.block_id, failure.requested_bytes) == (1, 13 * MIB)
    assert (failure.tried_bytes, failure.limit_bytes) == (14 * MIB, 30 * MIB)
    assert (failure.allocated_bytes, failure.unallocated_bytes) == (8 * MIB, 12 * MIB)
    assert (statistics.num_alloc_retries, statistics.num_ooms) == (1, 1)
    assert statistics.reserved_bytes == 20 * MIB  # the stream ended there
    assert str(failure) == (
        "no 14 MiB left within 30 MiB: 8 MiB allocated, 12 MiB reserved but unallocated"
    )


def test_the_allocator_goes_on_after_out_of_memory():
    allocator = CachingAllocator(capacity_bytes=30 * MIB)
    allocator.malloc(0, 8 * MIB)
    with pytest.raises(OutOfDeviceMemoryError):
        allocator.malloc(1, 13 * MIB)
    allocator.free(0)
    allocator.malloc(1, 13 * MIB)
    assert allocator.statistics().allocated_bytes == 13 * MIB


def test_an_oversize_block_serves_only_what_is_nearly_as_large():
    # From 32 MiB on unsplit. Of 40 free: 16 is refused and opens its own segment; 36 takes all 40.
    events = [(0, 40 * MIB), (0, 0), (1, 16 * MIB)]
    statistics = simulate(events, settings=UNSPLIT_FROM_32_MIB)
    assert (statistics.allocated_bytes, statistics.reserved_bytes) == (16 * MIB, 56 * MIB)
    statistics = simulate([*events, (2, 36 * MIB)], settings=UNSPLIT_FROM_32_MIB)
    assert (statistics.allocated_bytes, statistics.reserved_bytes) == (56 * MIB, 56 * MIB)
    # Of 60 free, 40 is refused (60 is not below 40 + 20) and 42 is not.
    for num_mebibytes, reserved_mebibytes in ((40, 100), (42, 60)):
        events = [(0, 60 * MIB), (0, 0), (1, num_mebibytes * MIB)]
        statistics = simulate(events, settings=UNSPLIT_FROM_32_MIB)
        assert statistics.reserved_bytes == reserved_mebibytes * MIB


def test_oversize_blocks_are_released_first_and_only_as_many_as_needed():
    # Cached 10, 40 and 44; 50 more is over 100. No single one reaches 50: 44, then 40 go back.
    events = [(0, 10 * MIB), (1, 40 * MIB), (2, 44 * MIB), (0, 0), (1, 0), (2, 0)]
    statistics = simulate(
        [*events, (3, 50 * MIB)], settings=UNSPLIT_FROM_32_MIB, capacity_bytes=100 * MIB
    )
    assert (statistics.reserved_bytes, statistics.num_alloc_retries) == (60 * MIB, 0)
    # Cached 10 and 60; 35 may not have 60 (60 >= 35 + 20) and its 36 are over 100: 60 goes back.
    events = [(0, 10 * MIB), (1, 60 * MIB), (0, 0), (1, 0), (2, 35 * MIB)]
    statistics = simulate(events, settings=UNSPLIT_FROM_32_MIB, capacity_bytes=100 * MIB)
    assert (statistics.reserved_bytes, statistics.num_alloc_retries) == (46 * MIB, 0)


def test_a_memory_fraction_limits_what_is_reserved():
    settings = AllocatorSettings(per_process_memory_fraction=0.3)
    statistics = simulate(
        [(0, 8 * MIB), (1, 13 * MIB)],
        settings=settings,
        capacity_bytes=90 * MIB,
        total_bytes=100 * MIB,
    )
    assert statistics.out_of_memory is not None
    assert statistics.out_of_memory.limit_bytes == 30 * MIB


def test_garbage_collection_releases_the_old_segments():
    # Allowed 100, threshold 50. Searches 1 and 2 open 30 and 40, freed at once. Search 3, for 45,
    # finds nothing: 70 > 50, the ages are 2 and 1, 2 is above their mean: 30 goes. 40 + 46 remain.
    settings = AllocatorSettings(garbage_collection_threshold=0.5, per_process_memory_fraction=0.5)
    events = [(0, 30 * MIB), (0, 0), (1, 40 * MIB), (1, 0), (2, 45 * MIB)]
    statistics = simulate(events, settings=settings, total_bytes=200 * MIB)
    assert (statistics.reserved_bytes, statistics.num_alloc_retries) == (86 * MIB, 0)
    assert statistics.peak_reserved_bytes == 86 * MIB


def test_expandable_segments_grow_by_pages():
    # Page 1 holds 4, page 2 is mapped behind the 16 that are left for the 18.
    allocator = CachingAllocator(EXPANDABLE)
    allocator.malloc(0, 4 * MIB)
    assert allocator.statistics().reserved_bytes == 20 * MIB
    allocator.malloc(1, 18 * MIB)
    assert allocator.statistics().reserved_bytes == 40 * MIB
    assert allocator.statistics().allocated_bytes == 22 * MIB
    allocator.malloc(2, 1)
    assert allocator.statistics().reserved_bytes == 42 * MIB
    # 4 to 22 is in use and touches both pages, so only the small pool's page can go.
    allocator.free(0)
    allocator.free(2)
    allocator.empty_cache()
    assert allocator.statistics().reserved_bytes == 40 * MIB
    assert allocator.statistics().inactive_split_bytes == 0
    allocator.free(1)
    allocator.empty_cache()
    assert allocator.statistics().reserved_bytes == 0


def test_expandable_segments_split_at_512_bytes():
    # Default mode would leave 20 MiB - 512 to the block; here another 512 fit behind.
    events = [(0, 20 * MIB - 512), (1, 2 * MIB)]
    statistics = simulate(events, settings=EXPANDABLE)
    assert statistics.allocated_bytes == 22 * MIB - 512
    assert statistics.reserved_bytes == 40 * MIB


def test_expandable_segments_fill_a_hole_that_is_large_enough():
    # Three pages in use, the middle one unmapped: 40. 30 does not fit the hole and maps two pages
    # at the end (80), of which 10 stay free; 15 fits neither there nor elsewhere but the hole.
    allocator = CachingAllocator(EXPANDABLE)
    for block_id in range(3):
        allocator.malloc(block_id, 20 * MIB)
    allocator.free(1)
    allocator.empty_cache()
    assert allocator.statistics().reserved_bytes == 40 * MIB
    allocator.malloc(3, 30 * MIB)
    assert allocator.statistics().reserved_bytes == 80 * MIB
    allocator.malloc(4, 15 * MIB)
    assert allocator.statistics().reserved_bytes == 100 * MIB
    # 5 fits the rest of the hole (5) and the end (10, which could grow): the hole is taken.
    allocator.malloc(5, 5 * MIB)
    allocator.malloc(6, 10 * MIB)
    assert allocator.statistics().reserved_bytes == 100 * MIB


def test_expandable_segments_keep_the_block_that_can_grow_for_later():
    # A page holds 8 (freed), 6 and 6 free at the end. 5 would fit the end more tightly, but the
    # end can grow and the 8 cannot: 5 goes there. 7 then finds 3 and 6, and the end grows a page.
    events = [(0, 8 * MIB), (1, 6 * MIB), (0, 0), (2, 5 * MIB)]
    assert simulate(events, settings=EXPANDABLE).reserved_bytes == 20 * MIB
    statistics = simulate([*events, (3, 7 * MIB)], settings=EXPANDABLE)
    assert statistics.reserved_bytes == 40 * MIB


def test_expandable_segments_run_out_of_memory_by_the_page():
    # 30 of 40 mapped; 15 needs a third page, 60 > 50. The 10 that are free make no whole page.
    statistics = simulate(
        [(0, 30 * MIB), (1, 15 * MIB)], settings=EXPANDABLE, capacity_bytes=50 * MIB
    )
    failure = statistics.out_of_memory
    assert failure is not None
    assert (failure.tried_bytes, failure.unallocated_bytes) == (16 * MIB, 10 * MIB)


@pytest.mark.parametrize(
    ("divisions", "num_bytes", "block_bytes"),
    [
        ("4", 1200, 1536),  # not above 4 x 512: the next multiple of 512
        ("4", 5000, 5120),  # steps of 4096 / 4
        ("4", 4096, 4096),
        ("4", 7000, 7168),
        ("[256:1,512:2,>:8]", 200 * MIB + 1, 200 * MIB + 512),
        ("[256:1,512:2,>:8]", 300 * MIB + 1, 300 * MIB + 512),
        ("[256:1,512:2,>:8]", 700 * MIB, 768 * MIB),  # steps of 512 / 2
        ("[256:1,512:2,>:8]", 1100 * MIB, 1152 * MIB),  # steps of 1024 / 8
        ("[256:1,512:2,>:8]", 100 * GIB, 104 * GIB),  # above the last interval: steps of 64 / 8
    ],
)
def test_sizes_are_rounded_up_to_divisions_of_powers_of_two(divisions, num_bytes, block_bytes):
    settings = parse_allocator_settings(f"roundup_power2_divisions:{divisions}")
    assert rounded_bytes(num_bytes, settings.roundup_power2_divisions) == block_bytes
    assert simulate([(0, num_bytes)], settings=settings).requested_bytes == num_bytes


def test_a_peak_can_be_read_for_each_phase():
    allocator = CachingAllocator()
    allocator.malloc(0, 30 * MIB)
    allocator.malloc(1, 30 * MIB)
    allocator.free(1)
    assert allocator.statistics().peak_allocated_bytes == 60 * MIB
    allocator.reset_peak()
    assert allocator.statistics().peak_allocated_bytes == 30 * MIB
    allocator.malloc(2, 4 * MIB)
    statistics = allocator.statistics()
    assert statistics.peak_allocated_bytes == 34 * MIB
    assert statistics.peak_reserved_bytes == 60 * MIB
    assert statistics.peak_inactive_split_bytes == 26 * MIB


def test_a_block_is_allocated_once_and_freed_once():
    allocator = CachingAllocator()
    allocator.malloc(0, 1)
    with pytest.raises(ValueError, match="block 0 is allocated already"):
        allocator.malloc(0, 1)
    allocator.free(0)
    with pytest.raises(KeyError):
        allocator.free(0)


@given(st.integers(1, 200 * GIB), st.sampled_from([0, 1, 2, 4, 8, 16]))
def test_a_block_holds_its_request_and_little_more(num_bytes, number):
    block_bytes = rounded_bytes(num_bytes, (number,) * 16)
    assert block_bytes >= num_bytes
    assert block_bytes % 512 == 0
    assert block_bytes - num_bytes < max(512, num_bytes / max(number, 2))
    assert segment_bytes(block_bytes, 20 * MIB) >= block_bytes


@given(STREAMS, SETTINGS, st.sampled_from([None, 64 * MIB, 200 * MIB]))
def test_reserved_holds_allocated_holds_requested(stream, settings, capacity_bytes):
    allocator = CachingAllocator(settings, capacity_bytes=capacity_bytes)
    before = allocator.statistics()
    for block_id, num_bytes in events_of(stream):
        try:
            allocator.malloc(block_id, num_bytes) if num_bytes else allocator.free(block_id)
        except OutOfDeviceMemoryError:
            break
        now = allocator.statistics()
        assert now.reserved_bytes >= now.allocated_bytes >= now.requested_bytes
        assert now.reserved_bytes - now.allocated_bytes >= now.inactive_split_bytes >= 0
        assert now.peak_reserved_bytes >= max(now.reserved_bytes, before.peak_reserved_bytes)
        assert now.peak_allocated_bytes >= max(now.allocated_bytes, before.peak_allocated_bytes)
        assert now.peak_requested_bytes >= max(now.requested_bytes, before.peak_requested_bytes)
        assert now.num_alloc_retries >= before.num_alloc_retries
        assert capacity_bytes is None or now.peak_reserved_bytes <= capacity_bytes
        before = now


@given(STREAMS, SETTINGS)
def test_freeing_everything_and_emptying_the_cache_leaves_nothing(stream, settings):
    allocator = CachingAllocator(settings)
    live = set()
    for block_id, num_bytes in events_of(stream):
        if num_bytes:
            allocator.malloc(block_id, num_bytes)
            live.add(block_id)
        else:
            allocator.free(block_id)
            live.remove(block_id)
    for block_id in live:
        allocator.free(block_id)
    allocator.empty_cache()
    left = allocator.statistics()
    assert left.requested_bytes == left.allocated_bytes == left.reserved_bytes == 0
    assert left.inactive_split_bytes == 0


@given(STREAMS, SETTINGS)
def test_a_capacity_above_what_is_reserved_changes_nothing(stream, settings):
    events = list(events_of(stream))
    free = simulate(events, settings=settings)
    assert free.out_of_memory is None
    assert simulate(events, settings=settings) == free
    capacity_bytes = max(free.peak_reserved_bytes, 1)
    assert simulate(events, settings=settings, capacity_bytes=capacity_bytes) == free
