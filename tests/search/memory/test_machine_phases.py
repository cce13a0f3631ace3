"""Which phase and which parts decide what a GPU must hold: by hand, and of real steps."""

import pytest

from objectives.language_model import LanguageModel
from search.memory.allocator_settings import AllocatorSettings
from search.memory.contexts import published_context
from search.memory.events import Event, Part, Phase
from search.memory.feasibility import DoesNotFit, judge
from search.memory.machine import CONTEXT, FRAGMENTATION, GpuMemory, reserved
from search.memory.trace import trace, trace_of
from search.units import MIB

CONTEXT_BYTES = published_context((8, 0)).expected_bytes
A100 = GpuMemory(architecture=(8, 0), context=published_context((8, 0)))


def events_of(*stream):
    """Of (phase, block, MiB): more than 0 appear, and with 0 the block goes."""
    sizes: dict[str, int] = {}
    numbers = {name: number for number, name in enumerate(sorted({name for _, name, _ in stream}))}
    for phase, name, size in stream:
        num_bytes = size * MIB if size else -sizes.pop(name)
        if size:
            sizes[name] = num_bytes
        yield Event(
            phase=phase,
            storage=numbers[name],
            num_bytes=num_bytes,
            operator="aten.empty.memory_format",
            part=Part.TEMPORARIES,
        )


# Step 1 opens a segment of 30 MiB for its activations. Into it go the moments of two weights, 6
# MiB each, and behind each of them what the optimizer computes with: 6 + 12 + 6 + 6 fill it. What
# is left for step 2 is 12 and 6 MiB, with a moment between: 18 MiB of activations need a new
# segment, though no more is allocated than in step 1.
SPIKE = tuple(
    events_of(
        (Phase.STEP_1, "activations", 30),
        (Phase.STEP_1, "activations", 0),
        (Phase.STEP_1, "first moment", 6),
        (Phase.STEP_1, "a root", 12),
        (Phase.STEP_1, "second moment", 6),
        (Phase.STEP_1, "another root", 6),
        (Phase.STEP_1, "a root", 0),
        (Phase.STEP_1, "another root", 0),
        (Phase.STEP_2, "more activations", 18),
        (Phase.STEP_2, "more activations", 0),
    )
)


class TestStepTwo:
    def test_may_reserve_more_though_it_allocates_no_more(self):
        used = reserved(SPIKE, AllocatorSettings())
        assert used.allocated_bytes == 30 * MIB
        assert used.by_phase == {
            Phase.MODEL_CREATION: 0,
            Phase.STEP_1: 30 * MIB,
            Phase.STEP_2: 48 * MIB,
        }
        assert (used.phase, used.reserved_bytes) == (Phase.STEP_2, 48 * MIB)
        # Step 1 is where tensors alone would see the peak.
        assert trace_of(list(SPIKE)).peak_phase is Phase.STEP_1

    def test_decides_what_is_predicted(self):
        predicted = A100.predicted(trace_of(list(SPIKE)))
        assert predicted.phase == "step_2"
        assert predicted.parts[FRAGMENTATION] == 18 * MIB
        assert predicted.expected_bytes == 48 * MIB + CONTEXT_BYTES

    @pytest.mark.parametrize(("room_mib", "completes"), [(48, True), (47, False), (30, False)])
    def test_runs_out_where_step_1_had_room(self, room_mib, completes):
        capacity_bytes = A100.context.high_bytes + room_mib * MIB
        step_1 = [event for event in SPIKE if event.phase is Phase.STEP_1]
        assert A100.completes(trace_of(step_1), capacity_bytes)
        assert A100.completes(trace_of(list(SPIKE)), capacity_bytes) is completes

    def test_of_a_real_step(self):
        params = {"batch_size": 2, "sequence_length": 64, "width": 768, "depth": 1}
        objective = LanguageModel(held_out_tokens=2_000, evaluation_context=16)
        traced = trace(objective, params, target=A100.target())
        by_phase = traced.peak_bytes_by_phase
        assert by_phase[Phase.STEP_1] == by_phase[Phase.STEP_2] == traced.peak_bytes
        used = reserved(traced.events, A100.settings)
        assert used.by_phase[Phase.STEP_1] < used.by_phase[Phase.STEP_2]
        assert A100.predicted(traced).phase == "step_2"


@pytest.fixture(scope="module")
def judged_at_length_512():
    """A small training step whose evaluation looks at 4 windows of 512, and its trace."""
    objective = LanguageModel(held_out_tokens=4_000, evaluation_context=512)
    params = {"batch_size": 4, "sequence_length": 16, "depth": 1, "precision": "bf16-mixed"}
    return params, trace(objective, params, target=A100.target())


class TestEvaluation:
    def test_is_named_where_it_decides(self, judged_at_length_512):
        _, traced = judged_at_length_512
        by_phase = traced.peak_bytes_by_phase
        assert by_phase[Phase.EVALUATION] > by_phase[Phase.STEP_2]
        assert A100.predicted(traced).phase == "evaluation"

    def test_never_shrinks_the_batch_that_is_trained(self, judged_at_length_512):
        params, traced = judged_at_length_512
        predicted = A100.predicted(traced)
        refused = judge(
            params, lambda _: predicted, predicted.high_bytes - 1, rescue=("micro_batch_size",)
        )
        assert isinstance(refused, DoesNotFit)
        assert refused.params == {**params, "micro_batch_size": "equal"}
        assert "evaluation decides" in refused.reason


def test_states_alone_are_not_the_need(judged_at_length_512):
    _, traced = judged_at_length_512
    predicted = A100.predicted(traced)
    assert sum(predicted.parts.values()) == predicted.expected_bytes
    states = {Part.PARAMETERS, Part.GRADIENTS, Part.OPTIMIZER}
    beyond = {Part.TEMPORARIES, Part.WORKSPACE, FRAGMENTATION, CONTEXT}
    assert beyond <= predicted.parts.keys() - states
    assert all(predicted.parts[part] > 0 for part in beyond)
    assert sum(predicted.parts.get(part, 0) for part in states) < predicted.expected_bytes / 100
