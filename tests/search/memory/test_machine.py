import pytest

from search.memory.allocator_settings import AllocatorSettings
from search.memory.device import ByteEstimate
from search.memory.machine import CONTEXT, FRAGMENTATION, CpuMemory, GpuMemory, reserved
from search.memory.sample import Sample
from search.memory.target import Unsure
from search.memory.trace import Event, Part, Phase, trace, trace_of
from search.units import MIB

CONTEXT_SIZE = ByteEstimate(
    low_bytes=300 * MIB, expected_bytes=400 * MIB, high_bytes=600 * MIB, source="a test"
)
GPU = GpuMemory(architecture=(8, 0), context=CONTEXT_SIZE)
PARAMS = {"batch_size": 4, "learning_rate": 1e-3}


def event(storage, num_mib, phase=Phase.STEP_1):
    return Event(
        phase=phase,
        storage=storage,
        num_bytes=num_mib * MIB,
        operator="aten.empty",
        part=Part.ACTIVATIONS,
    )


# 12 MiB get a segment of their own, which cannot hold 30 MiB when they are free: 42 MiB reserved,
# of which 30 are used at most. Where only 30 are to be had, the first segment is given back.
OUTGROWN = [
    event(0, 12, Phase.MODEL_CREATION),
    event(0, -12),
    event(1, 30),
    event(1, -30, Phase.STEP_2),
]


class TestReserved:
    def test_follows_the_allocators_segments(self):
        used = reserved(OUTGROWN, AllocatorSettings())
        assert used.reserved_bytes == 42 * MIB
        assert used.allocated_bytes == used.requested_bytes == 30 * MIB

    def test_names_the_first_phase_that_reserves_the_most(self):
        used = reserved(OUTGROWN, AllocatorSettings())
        assert used.phase is Phase.STEP_1
        assert used.by_phase == {
            Phase.MODEL_CREATION: 12 * MIB,
            Phase.STEP_1: 42 * MIB,
            Phase.STEP_2: 42 * MIB,
        }

    def test_small_blocks_share_a_segment(self):
        # a megabyte and less: segments of 2 MiB; less than ten: segments of 20 MiB
        used = reserved([event(0, 1), event(1, 1), event(2, 6), event(3, 6)], AllocatorSettings())
        assert used.reserved_bytes == 22 * MIB


class TestGpu:
    def test_is_what_is_reserved_and_the_context(self):
        predicted = GPU.predicted(trace_of(OUTGROWN))
        assert predicted.expected_bytes == (42 + 400) * MIB
        assert (predicted.allocated_bytes, predicted.reserved_bytes) == (30 * MIB, 42 * MIB)
        assert predicted.parts == {
            "activations": 30 * MIB,
            FRAGMENTATION: 12 * MIB,
            CONTEXT: 400 * MIB,
        }
        assert predicted.phase == "step_1"

    def test_leaves_open_what_nobody_states(self):
        traced = trace_of(OUTGROWN)
        sure = GPU.predicted(traced)
        assert (sure.low_bytes, sure.high_bytes) == (342 * MIB, 642 * MIB)
        unsure = type(traced)(
            **{name: getattr(traced, name) for name in traced.__dataclass_fields__}
            | {"uncertain": (Unsure(10 * MIB, 20 * MIB),)}
        )
        open_ended = GPU.predicted(unsure)
        assert (open_ended.low_bytes, open_ended.high_bytes) == (332 * MIB, 662 * MIB)

    def test_is_bounded_by_either_order_of_segments(self):
        # 40 MiB where the driver hands out segments downwards, 56 where upwards: the stream of
        # `test_allocator.py`, where the figures are worked out.
        blocks = [(0, 8), (1, 9), (2, 8), (3, 9), (1, -9), (3, -9), (4, 5), (0, -8), (5, 16)]
        predicted = GPU.predicted(trace_of([event(*block) for block in blocks]))
        assert predicted.expected_bytes == (400 + 40) * MIB
        assert predicted.low_bytes == (300 + 40) * MIB
        assert predicted.high_bytes == (600 + 56) * MIB

    def test_the_allocator_is_set_up_as_torch_would_be(self, monkeypatch):
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        here = GpuMemory(architecture=(8, 0), context=CONTEXT_SIZE)
        # pages of 20 MiB are mapped as they are needed: 30 MiB lie in two of them, with no gap
        assert here.predicted(trace_of(OUTGROWN)).reserved_bytes == 40 * MIB

    @pytest.mark.parametrize(("segments_mib", "ends_well"), [(29, False), (30, True), (42, True)])
    def test_cached_segments_are_given_back_before_memory_runs_out(self, segments_mib, ends_well):
        # the context is taken at its largest, as a run that fits must fit beside it
        assert GPU.completes(trace_of(OUTGROWN), (600 + segments_mib) * MIB) is ends_well

    def test_a_real_step_completes_with_what_is_predicted_for_it_and_not_with_less_than_it_uses(
        self,
    ):
        traced = trace(Sample(), PARAMS, target=GPU.target())
        predicted = GPU.predicted(traced)
        assert sum(predicted.parts.values()) == predicted.expected_bytes
        assert GPU.completes(traced, predicted.high_bytes)
        assert not GPU.completes(traced, 600 * MIB + predicted.allocated_bytes - 2 * MIB)


def test_a_cpu_has_nothing_to_give_back():
    cpu = CpuMemory(overhead_bytes=MIB)
    high_bytes = cpu.predicted(trace_of(OUTGROWN)).high_bytes
    assert cpu.completes(trace_of(OUTGROWN), high_bytes)
    assert not cpu.completes(trace_of(OUTGROWN), high_bytes - 1)
