"""The simulated allocator against a naive one: all ranges in one list, every rule a scan of it."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.allocator import CachingAllocator
from search.memory.allocator_blocks import SegmentOrder
from search.memory.allocator_settings import AllocatorSettings, parse_allocator_settings
from search.memory.allocator_statistics import OutOfDeviceMemoryError
from search.units import MIB

HUGE = 2**60
USED, FREE, BARE = "used", "free", "bare"


class NothingLeftError(Exception):
    pass


@dataclass
class Range:
    segment: int
    start: int
    size: int
    state: str
    is_small: bool
    requested: int = 0
    owner: int = -1
    born: int = 0

    @property
    def stop(self):
        return self.start + self.size


class Naive:
    """Ranges sorted by segment and place in it; the numbers are counted anew for each answer."""

    def __init__(self, settings, capacity, total, order=SegmentOrder.DOWNWARDS):
        self.settings = settings
        self.capacity = HUGE if capacity is None else capacity
        self.total = total or self.capacity
        fraction = settings.per_process_memory_fraction
        self.allowed = HUGE if fraction == 1 else int(fraction * self.total)
        self.max_split = settings.max_split_bytes or HUGE
        self.ranges = []
        self.num_segments = 0
        upwards = order is SegmentOrder.UPWARDS or settings.expandable_segments
        self.step = 1 if upwards else -1
        self.searches = {True: 0, False: 0}
        self.retries = 0
        self.peaks = dict.fromkeys(self.now(), 0)

    def now(self):
        used = [r for r in self.ranges if r.state == USED]
        counts = [r.segment for r in self.ranges]
        return {
            "requested_bytes": sum(r.requested for r in used),
            "allocated_bytes": sum(r.size for r in used),
            "reserved_bytes": self.reserved(),
            "inactive_split_bytes": sum(
                r.size
                for r in self.ranges
                if r.state == FREE
                and counts.count(r.segment) > 1
                and not self.settings.expandable_segments
            ),
        }

    def reserved(self):
        return sum(r.size for r in self.ranges if r.state != BARE)

    def note(self):
        for name, value in self.now().items():
            self.peaks[name] = max(self.peaks[name], value)

    def tidy(self):
        """Joins free with free and bare with bare, and forgets segments without any memory."""
        self.ranges.sort(key=lambda r: (r.segment, r.start))
        joined = []
        for r in self.ranges:
            last = joined[-1] if joined else None
            if last and last.segment == r.segment and last.state == r.state != USED:
                last.size += r.size
                last.born = max(last.born, r.born)
            else:
                joined.append(r)
        self.ranges = joined

    def beside(self, r, step):
        index = self.ranges.index(r) + step
        if 0 <= index < len(self.ranges) and self.ranges[index].segment == r.segment:
            return self.ranges[index]
        return None

    def alone(self, r):
        return not self.beside(r, 1) and not self.beside(r, -1)

    def free_of(self, is_small):
        found = [r for r in self.ranges if r.state == FREE and r.is_small == is_small]
        return sorted(found, key=lambda r: (r.size, r.segment, r.start))

    def rounded(self, requested):
        interval = 0
        while interval < 15 and requested >= 2 ** (interval + 21):
            interval += 1
        divisions = self.settings.roundup_power2_divisions[interval]
        if divisions > 1 and requested > 512 * divisions:
            power = 1
            while power * 2 <= requested:
                power *= 2
            size = power
            while size < requested:
                size += power // divisions
            return size
        return max(1, -(-requested // 512)) * 512

    def segment_size(self, size):
        if size <= MIB:
            return 2 * MIB
        if size < 10 * MIB:
            return self.settings.large_segment_bytes
        return -(-size // (2 * MIB)) * 2 * MIB

    def malloc(self, owner, requested):
        size = self.rounded(requested)
        is_small = size <= MIB
        found = self.best_fit(size, is_small) or self.new(size, is_small)
        rest = found.size - size
        if is_small or self.settings.expandable_segments:
            splits = rest >= 512
        else:
            splits = rest > MIB and size < self.max_split
        if splits:
            behind = replace(found, start=found.start + size, size=rest, state=FREE)
            behind.born = self.searches[is_small]
            self.ranges.append(behind)
            found.size = size
        found.state, found.owner, found.requested = USED, owner, requested
        self.tidy()
        self.note()

    def free(self, owner):
        (r,) = [r for r in self.ranges if r.state == USED and r.owner == owner]
        r.state, r.owner, r.born = FREE, -1, self.searches[r.is_small]
        self.tidy()
        self.note()

    def best_fit(self, size, is_small):
        self.searches[is_small] += 1
        fits = [r for r in self.free_of(is_small) if r.size >= size]
        if not fits:
            return None
        chosen = fits[0]
        if self.settings.expandable_segments:
            for other in fits[1:]:
                if self.with_growth(other) >= self.with_growth(chosen):
                    break
                chosen = other
        if size < self.max_split <= chosen.size:
            return None
        slack = self.settings.max_non_split_rounding_bytes
        return None if size >= self.max_split and chosen.size >= size + slack else chosen

    def with_growth(self, r):
        behind = self.beside(r, 1)
        return r.size + (behind.size if behind and behind.state == BARE else 0)

    def new(self, size, is_small):
        self.collect_garbage()
        found = self.from_driver(size, is_small)
        if not found and self.release_oversize(size, is_small):
            found = self.from_driver(size, is_small)
        if not found:
            self.empty_cache()
            self.retries += 1
            found = self.from_driver(size, is_small)
        if not found:
            raise NothingLeftError
        return found

    def from_driver(self, size, is_small):
        wanted = self.segment_size(size)
        if self.reserved() + wanted > self.allowed:
            return None
        if self.settings.expandable_segments:
            return self.grown(size, is_small)
        if self.reserved() + wanted > self.capacity:
            return None
        self.num_segments += self.step
        made = Range(self.num_segments, 0, wanted, FREE, is_small)
        self.ranges.append(made)
        self.note()
        return made

    def page(self, is_small):
        return 2 * MIB if is_small else self.settings.large_segment_bytes

    def grown(self, size, is_small):
        """Page after page at the lowest place with room enough, until the free range there does."""
        segment, start = self.place(size, is_small)
        page = self.page(is_small)
        while True:
            inside = [r for r in self.ranges if r.segment == segment and r.stop > start]
            here = inside[0]
            if here.state == FREE and here.size >= size:
                return here
            bare = next(r for r in inside if r.state == BARE)
            so_far = bare.start - start
            mapped = min(-(-(size - so_far) // page) * page, bare.size)
            if self.reserved() + mapped > self.capacity:
                return None
            born = self.searches[is_small]
            self.ranges.append(replace(bare, size=mapped, state=FREE, born=born))
            bare.start, bare.size = bare.start + mapped, bare.size - mapped
            if not bare.size:
                self.ranges.remove(bare)
            self.tidy()
            self.note()

    def place(self, size, is_small):
        for bare in [r for r in self.ranges if r.state == BARE and r.is_small == is_small]:
            before = self.beside(bare, -1)
            first = before if before and before.state == FREE else bare
            room, r = 0, first
            while r and r.state != USED:
                room, r = room + r.size, self.beside(r, 1)
            if room >= size:
                return first.segment, first.start
        self.num_segments += self.step
        page = self.page(is_small)
        span = -(-(self.total + self.total // 8) // page) * page
        self.ranges.append(Range(self.num_segments, 0, span, BARE, is_small))
        return self.num_segments, 0

    def release_oversize(self, size, is_small):
        if self.settings.max_split_bytes is None or self.settings.expandable_segments:
            return False
        wanted = max(size, self.max_split)
        free = self.free_of(is_small)
        for r in free:
            if r.size >= wanted:
                self.ranges.remove(r)
                return True
        released = 0
        while free and released < wanted and free[-1].size >= self.max_split:
            released += free[-1].size
            self.ranges.remove(free.pop())
        return released >= wanted

    def empty_cache(self):
        if self.settings.expandable_segments:
            for r in [r for r in self.ranges if r.state == FREE]:
                self.unmap(r)
            self.tidy()
            self.ranges = [r for r in self.ranges if r.state != BARE or not self.alone(r)]
        else:
            self.ranges = [r for r in self.ranges if r.state != FREE or not self.alone(r)]

    def unmap(self, r):
        page = self.page(r.is_small)
        first, last = -(-r.start // page) * page, r.stop // page * page
        if first < last:
            self.ranges.remove(r)
            born = self.searches[r.is_small]
            for start, stop, state in (
                (r.start, first, FREE),
                (first, last, BARE),
                (last, r.stop, FREE),
            ):
                if start < stop:
                    piece = replace(r, start=start, size=stop - start, state=state, born=born)
                    self.ranges.append(piece)

    def collect_garbage(self):
        threshold = int(self.settings.garbage_collection_threshold * self.allowed)
        if not self.settings.garbage_collection_threshold or self.allowed == HUGE:
            return
        excess = self.reserved() - threshold
        while excess > 0:
            whole = [r for r in self.free_of(is_small=False) if self.alone(r)]
            if not whole:
                return
            ages = {id(r): self.searches[False] - r.born for r in whole}
            mean = sum(ages.values()) / len(ages)
            for r in whole:
                if ages[id(r)] >= mean:
                    excess -= r.size
                    self.ranges.remove(r)


SIZES = st.one_of(
    st.sampled_from([1, 512, 513, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB]),
    st.integers(1, 3 * MIB),
    st.integers(MIB, 12 * MIB),
    st.integers(10 * MIB, 60 * MIB),
)
STREAMS = st.lists(SIZES | st.integers(-20, 0), min_size=15, max_size=70)
"""Above 0: allocate so many bytes. Below: free a live block, counted from the last. 0: empty."""


def agree(stream, settings, capacity=None, total=None, order=SegmentOrder.DOWNWARDS):
    ours = CachingAllocator(
        settings, capacity_bytes=capacity, total_bytes=total, segment_order=order
    )
    naive = Naive(settings, capacity, total, order)
    live = []
    for block_id, number in enumerate(stream):
        if number > 0:
            if allocated_by_both(ours, naive, block_id, number):
                live.append(block_id)
        elif number == 0:
            ours.empty_cache()
            naive.empty_cache()
        elif live:
            freed = live.pop(number % -len(live))
            ours.free(freed)
            naive.free(freed)
        statistics = ours.statistics()
        for name, value in naive.now().items():
            assert getattr(statistics, name) == value
            assert getattr(statistics, f"peak_{name}") == naive.peaks[name]
        assert statistics.num_alloc_retries == naive.retries


def allocated_by_both(ours, naive, block_id, num_bytes):
    try:
        naive.malloc(block_id, num_bytes)
    except NothingLeftError:
        num_ooms = ours.statistics().num_ooms
        with pytest.raises(OutOfDeviceMemoryError):
            ours.malloc(block_id, num_bytes)
        assert ours.statistics().num_ooms == num_ooms + 1
        return False
    ours.malloc(block_id, num_bytes)
    return True


CAPACITIES = st.sampled_from([None, 48 * MIB, 111 * MIB, 200 * MIB])


@given(STREAMS, CAPACITIES, st.sampled_from(SegmentOrder))
def test_default_mode(stream, capacity, order):
    agree(stream, AllocatorSettings(), capacity, order=order)


@given(STREAMS, CAPACITIES, st.sampled_from(["20", "32", "21,max_non_split_rounding_mb:30"]))
def test_oversize_blocks(stream, capacity, max_split):
    agree(stream, parse_allocator_settings(f"max_split_size_mb:{max_split}"), capacity)


@given(STREAMS, CAPACITIES, st.sampled_from(["2", "8", "[1:2,4:4,>:8]", "[>:4]"]))
def test_rounding_to_divisions(stream, capacity, divisions):
    agree(stream, parse_allocator_settings(f"roundup_power2_divisions:{divisions}"), capacity)


@given(
    STREAMS, CAPACITIES, st.sampled_from(["", ",large_segment_size_mb:12", ",max_split_size_mb:20"])
)
def test_expandable_segments(stream, capacity, further):
    agree(stream, parse_allocator_settings(f"expandable_segments:True{further}"), capacity)


@given(STREAMS, st.sampled_from([0.2, 0.5, 0.9]), st.booleans(), st.integers(100, 400))
def test_garbage_collection_under_a_memory_fraction(stream, threshold, expandable, total):
    settings = AllocatorSettings(
        garbage_collection_threshold=threshold,
        per_process_memory_fraction=0.5,
        expandable_segments=expandable,
    )
    agree(stream, settings, capacity=total * MIB - 5 * MIB, total=total * MIB)
