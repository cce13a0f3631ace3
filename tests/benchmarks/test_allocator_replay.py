"""Histories as torch's snapshots hold them, written by hand, against the simulated allocator."""

import pytest

from benchmarks.allocator_replay import Sample, Step, agreement, replay, steps_of
from search.errors import InputError
from search.memory.events import Event, Part, Phase

MIB = 2**20
SMALL, LARGE = 0x7F00_0000_0000, 0x7F00_4000_0000


def entry(action, addr, size):
    """One of `device_traces`, with all that torch 2.13 puts there."""
    more = {"frames": [], "stream": 0, "time_us": 1, "pool_id": (0, 0), "compile_context": "N/A"}
    return {"action": action, "addr": addr, "size": size, **more}


# 1,000 B take 1,024 of a 2 MiB segment, 3 MiB and 1 B take 3 MiB and 512 B of a 20 MiB one; the
# 500 B that follow the first free lie where it was, since what is left there is the best fit.
TRACE = [
    entry("segment_alloc", SMALL, 2 * MIB),
    entry("alloc", SMALL, 1000),
    entry("segment_alloc", LARGE, 20 * MIB),
    entry("alloc", LARGE, 3 * MIB + 1),
    entry("alloc", SMALL + 1024, 2000),
    entry("free_requested", SMALL, 1000),
    entry("free_completed", SMALL, 1000),
    entry("alloc", SMALL, 500),
    entry("free_requested", LARGE, 3 * MIB + 1),
    entry("free_completed", LARGE, 3 * MIB + 1),
    entry("segment_free", LARGE, 20 * MIB),
    entry("snapshot", 0, 0),
]
SNAPSHOT = {"segments": [], "device_traces": [[], TRACE]}
# Blocks of 1,024, 3 MiB + 512, 2,048 and 512 B, after so many allocations and frees.
SAMPLES = [
    Sample(0, 0, 0, 0, 0),
    Sample(1, 0, 1000, 1024, 2 * MIB),
    Sample(3, 0, 3001 + 3 * MIB, 3584 + 3 * MIB, 22 * MIB),
    Sample(4, 1, 2501 + 3 * MIB, 3072 + 3 * MIB, 22 * MIB),
    Sample(4, 1, 2501 + 3 * MIB, 3072 + 3 * MIB, 22 * MIB),
    Sample(4, 2, 2500, 2560, 22 * MIB),
]


def test_a_history_is_followed_to_its_end():
    found = replay(steps_of(SNAPSHOT, 1), samples=SAMPLES)
    assert found.difference is None
    assert found.num_events == 9  # without requests to free, and the snapshot itself
    assert found.num_samples == 5  # the first is before all
    assert found.statistics.allocated_bytes == 2560
    assert found.statistics.reserved_bytes == 2 * MIB


def test_of_equal_blocks_the_lower_recorded_address_is_taken():
    # The driver gave the second segment the lower address.
    steps = [
        Step("segment_alloc", LARGE, 12 * MIB),
        Step("alloc", LARGE, 12 * MIB),
        Step("segment_alloc", SMALL, 12 * MIB),
        Step("alloc", SMALL, 12 * MIB),
        Step("free_completed", LARGE, 12 * MIB),
        Step("free_completed", SMALL, 12 * MIB),
        Step("alloc", SMALL, 12 * MIB),
    ]
    assert replay(steps).difference is None
    steps[-1] = Step("alloc", LARGE, 12 * MIB)
    assert "the block lies at 0x7f0040000000, simulated at 0x7f00" in replay(steps).difference


def test_a_segment_of_another_size_is_told():
    steps = steps_of(SNAPSHOT, 1)
    steps[2] = Step("segment_alloc", LARGE, 22 * MIB)
    assert replay(steps).difference == (
        "event 3 (alloc of 3,145,729 B): reserved 25,165,824 B, simulated 23,068,672 B"
    )


def test_other_allocated_bytes_are_told():
    samples = [Sample(1, 0, 1000, 1536, 2 * MIB)]
    assert replay(steps_of(SNAPSHOT, 1), samples=samples).difference == (
        "event 1 (alloc of 1,000 B): allocated 1,536 B, simulated 1,024 B"
    )


def test_a_history_must_begin_with_nothing():
    steps = [Step("free_completed", SMALL, 1000)]
    assert "came before the history began" in replay(steps).difference


@pytest.mark.parametrize("snapshot", [{}, SNAPSHOT, {"device_traces": []}])
def test_a_snapshot_without_a_history_is_refused(snapshot):
    with pytest.raises(InputError, match=r"no history of device 0 .*_record_memory_history"):
        steps_of(snapshot)


def test_what_was_traced_is_compared_in_order():
    def appears(storage, num_bytes, operator="aten.mm.default"):
        return Event(
            phase=Phase.STEP_1,
            storage=storage,
            num_bytes=num_bytes,
            operator=operator,
            part=Part.TEMPORARIES,
        )

    events = [
        appears(0, 1000),
        appears(0, -1000),
        appears(1, 3 * MIB + 1),
        appears(2, 2000, "aten.add.Tensor"),
        appears(3, 500),
    ]
    steps = steps_of(SNAPSHOT, 1)
    agreed = agreement(events, steps)
    assert (agreed.num_equal, agreed.num_traced, agreed.num_recorded) == (4, 4, 4)
    assert agreed.difference is None
    events[3] = appears(2, 1996, "aten.add.Tensor")
    assert agreement(events, steps).difference == (
        "allocation 2: traced 1,996 B by aten.add.Tensor in step_1, recorded 2,000 B"
    )
    assert agreement(events[:2], steps).difference == (
        "allocation 1: traced nothing, recorded 3,145,729 B"
    )
