import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.allocator_settings import AllocatorSettings
from search.memory.device import ByteEstimate
from search.memory.events import Event, Part, Phase
from search.memory.machine import CpuMemory, GpuMemory
from search.memory.sample import Sample
from search.memory.timeline import timeline
from search.memory.trace import trace, trace_of

MIB = 2**20
GPU = GpuMemory(
    architecture=(8, 0),
    context=ByteEstimate(low_bytes=0, expected_bytes=100 * MIB, high_bytes=0, source="none"),
    settings=AllocatorSettings(),
)


def event(storage, num_mib, *, phase=Phase.STEP_1, part=Part.TEMPORARIES):
    size = round(num_mib * MIB)
    return Event(phase=phase, storage=storage, num_bytes=size, operator="one", part=part)


EVENTS = [
    event(0, 2, phase=Phase.MODEL_CREATION, part=Part.PARAMETERS),
    event(1, 30, part=Part.ACTIVATIONS),
    event(1, -30, part=Part.ACTIVATIONS),
    event(2, 0.5, phase=Phase.LAST_BATCH, part=Part.ACTIVATIONS),
]


def test_a_gpu_by_hand():
    found = timeline(trace_of(EVENTS), GPU, num_moments=100)
    # 2 MiB come from a segment of 20 MiB, 30 from one of their own, 0.5 from one of 2 MiB
    assert [moment.num_bytes // MIB - 100 for moment in found.moments] == [20, 50, 50, 52]
    assert [moment.event for moment in found.peaks] == [0, 1, 3]
    assert dict(found.peak.parts) == {
        "parameters": 2 * MIB,
        "activations": MIB // 2,
        "fragmentation": 49.5 * MIB,
        "context": 100 * MIB,
    }


def test_a_cpu_by_hand():
    found = timeline(trace_of(EVENTS), CpuMemory(overhead_bytes=MIB), num_moments=100)
    assert [moment.num_bytes / MIB for moment in found.moments] == [3, 33, 3, 3.5]
    assert found.peak is found.peaks[1]


@given(num_moments=st.integers(1, 60))
def test_fewer_moments_keep_the_peak_of_each_phase(num_moments):
    machine = CpuMemory(overhead_bytes=0)
    every = []
    for storage in range(30):
        phase, size = list(Phase)[storage // 5], storage % 7 + 1
        every.append(event(storage, size, phase=phase))
        if storage % 3:
            every.append(event(storage, -size, phase=phase))
    fine = timeline(trace_of(every), machine, num_moments=len(every))
    found = timeline(trace_of(every), machine, num_moments=num_moments)
    assert [each.num_bytes for each in found.peaks] == [each.num_bytes for each in fine.peaks]
    assert len(found.moments) <= num_moments + len(Phase)


@pytest.mark.parametrize("machine", [GPU, CpuMemory(overhead_bytes=3 * MIB)])
def test_its_peak_is_what_is_predicted(machine):
    traced = trace(Sample(), {"batch_size": 4}, target=machine.target())
    found = timeline(traced, machine, num_moments=50)
    predicted = machine.predicted(traced)
    assert found.peak.num_bytes == predicted.expected_bytes
    assert sum(predicted.parts.values()) == predicted.expected_bytes
