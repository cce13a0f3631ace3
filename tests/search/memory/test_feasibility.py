import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import MachineError
from search.memory.feasibility import RESCUES, DoesNotFit, Fits, judge
from search.results import PredictedMemory
from search.units import MIB


def predict(params) -> PredictedMemory:
    """10 MiB, and 4 MiB for each sample of a micro-batch."""
    size = params["micro_batch_size"]
    samples = params["batch_size"] if size == "equal" else size
    activations = 4 * MIB * samples
    return PredictedMemory(
        expected_bytes=9 * MIB + activations,
        low_bytes=8 * MIB + activations,
        high_bytes=10 * MIB + activations,
        phase="step_2",
        parts={"parameters": 9 * MIB, "activations": activations},
    )


class TestJudge:
    def test_the_upper_end_decides(self):
        params = {"batch_size": 5}
        assert isinstance(judge(params, predict, 30 * MIB), Fits)
        refused = judge(params, predict, 30 * MIB - 1)
        assert isinstance(refused, DoesNotFit)
        assert (refused.excess_bytes, refused.budget_bytes) == (1, 30 * MIB - 1)

    def test_says_what_is_needed_what_there_is_and_what_decides(self):
        reason = judge({"batch_size": 8}, predict, 20 * MIB).reason
        assert "42 MiB" in reason
        assert "20 MiB" in reason
        assert "step 2 decides, 32 MiB of it activations" in reason
        assert "memory.budget" in reason
        assert "memory.gate" in reason

    def test_equal_stays(self):
        verdict = judge({"batch_size": 8, "micro_batch_size": "equal"}, predict, 100 * MIB)
        assert verdict.params["micro_batch_size"] == "equal"

    def test_a_number_stays(self):
        verdict = judge({"batch_size": 8, "micro_batch_size": 2}, predict, 100 * MIB)
        assert verdict.params["micro_batch_size"] == 2


class TestAuto:
    @pytest.mark.parametrize(
        ("budget", "size"), [(100, 12), (58, 12), (57, 6), (26, 4), (22, 3), (14, 1)]
    )
    def test_is_the_largest_divisor_that_fits(self, budget, size):
        params = {"batch_size": 12, "micro_batch_size": "auto"}
        verdict = judge(params, predict, budget * MIB)
        assert isinstance(verdict, Fits)
        assert verdict.params["micro_batch_size"] == size

    def test_is_1_where_none_fits(self):
        params = {"batch_size": 12, "micro_batch_size": "auto"}
        verdict = judge(params, predict, 13 * MIB)
        assert isinstance(verdict, DoesNotFit)
        assert verdict.params["micro_batch_size"] == 1
        assert verdict.excess_bytes == MIB

    @given(batch_size=st.integers(1, 60), budget=st.integers(0, 300))
    def test_no_larger_divisor_would_have_fitted(self, batch_size, budget):
        params = {"batch_size": batch_size, "micro_batch_size": "auto"}
        chosen = judge(params, predict, budget * MIB)
        size = chosen.params["micro_batch_size"]
        assert batch_size % size == 0
        for larger in range(size + 1, batch_size + 1):
            if batch_size % larger == 0:
                other = judge({**params, "micro_batch_size": larger}, predict, budget * MIB)
                assert isinstance(other, DoesNotFit)


class Judge:
    """Remembers of what it gave the memory."""

    def __init__(self) -> None:
        self.given = []

    def __call__(self, params) -> PredictedMemory:
        self.given.append((params, checkpointed(params)))
        return self.given[-1][1]


@given(
    batch_size=st.integers(1, 60),
    micro_batch_size=st.sampled_from(["equal", "auto"]),
    budget=st.integers(0, 300),
    rescue=st.sampled_from([(), RESCUES]),
)
def test_what_is_returned_was_itself_judged(batch_size, micro_batch_size, budget, rescue):
    # a size finder that scales what it measured returns sizes nobody tried (Lightning #18426)
    params = {"batch_size": batch_size, "micro_batch_size": micro_batch_size}
    predict_and_note = Judge()
    verdict = judge(params, predict_and_note, budget * MIB, rescue=rescue)
    assert (verdict.params, verdict.predicted) in predict_and_note.given
    size = verdict.params["micro_batch_size"]
    assert size == "equal" or (size >= 1 and batch_size % size == 0)


def checkpointed(params) -> PredictedMemory:
    """10 MiB, and 4 MiB for each sample of a micro-batch, or 1 MiB where it is checkpointed."""
    plain = predict(params)
    if not params.get("activation_checkpointing"):
        return plain
    activations = plain.parts["activations"] * 3 // 4
    return PredictedMemory(
        expected_bytes=plain.expected_bytes - activations,
        low_bytes=plain.low_bytes - activations,
        high_bytes=plain.high_bytes - activations,
        phase="step_2",
    )


def rescued(budget, rescue=RESCUES, **params):
    verdict = judge({"batch_size": 12, **params}, checkpointed, budget * MIB, rescue=rescue)
    assert verdict.params["batch_size"] == 12
    return verdict


class TestRescue:
    @pytest.mark.parametrize(
        ("budget", "size", "checkpointing", "said"),
        [
            (58, "equal", False, ""),
            (57, 6, False, "micro_batch_size 6"),
            (33, 4, False, "micro_batch_size 4"),
            (14, 1, False, "micro_batch_size 1"),
            (13, 3, True, "activation_checkpointing true, micro_batch_size 3"),
            (11, 1, True, "activation_checkpointing true, micro_batch_size 1"),
        ],
    )
    def test_accumulates_first_and_then_checkpoints(self, budget, size, checkpointing, said):
        verdict = rescued(budget)
        assert isinstance(verdict, Fits)
        assert verdict.params["micro_batch_size"] == size
        assert verdict.params.get("activation_checkpointing", False) is checkpointing
        assert verdict.rescued == said

    def test_what_cannot_be_rescued_is_refused_as_it_was_asked_for(self):
        verdict = rescued(10)
        assert isinstance(verdict, DoesNotFit)
        assert verdict.params == {"batch_size": 12, "micro_batch_size": "equal"}
        assert verdict.excess_bytes == 48 * MIB

    def test_only_what_may_be_changed_is(self):
        assert isinstance(rescued(57, rescue=()), DoesNotFit)
        accumulated = rescued(30, rescue=("micro_batch_size",), micro_batch_size=12)
        assert accumulated.params == {"batch_size": 12, "micro_batch_size": 4}
        alone = rescued(30, rescue=("activation_checkpointing",), micro_batch_size=12)
        assert alone.params["micro_batch_size"] == 12
        assert alone.rescued == "activation_checkpointing true"

    def test_auto_is_checkpointed_with_the_largest_micro_batch_that_fits(self):
        verdict = rescued(13, micro_batch_size="auto")
        assert verdict.params["micro_batch_size"] == 3
        assert verdict.rescued == "activation_checkpointing true, micro_batch_size 3"

    def test_a_model_that_cannot_be_checkpointed_is_refused(self):
        def picky(params):
            if params.get("activation_checkpointing"):
                raise ValueError
            return predict(params)

        params = {"batch_size": 12}
        assert isinstance(judge(params, picky, 13 * MIB, rescue=RESCUES), DoesNotFit)
        assert judge(params, picky, 14 * MIB, rescue=RESCUES).rescued == "micro_batch_size 1"

    def test_a_machine_that_cannot_measure_is_told(self):
        def broken(params):
            if "activation_checkpointing" in params:
                raise MachineError
            return predict(params)

        with pytest.raises(MachineError):
            judge({"batch_size": 12}, broken, 13 * MIB, rescue=RESCUES)

    @given(batch_size=st.integers(1, 60), budget=st.integers(0, 300))
    def test_saves_all_that_could_be_saved_and_nothing_else(self, batch_size, budget):
        params = {"batch_size": batch_size}
        plain = judge(params, checkpointed, budget * MIB)
        found = judge(params, checkpointed, budget * MIB, rescue=RESCUES)
        if isinstance(plain, Fits):
            assert found == plain
        # a checkpointed micro-batch of 1 needs 11 MiB, and nothing less does
        assert isinstance(found, Fits) == (budget >= 11)
        assert found.predicted.high_bytes <= budget * MIB or isinstance(found, DoesNotFit)
        assert found.params["batch_size"] == batch_size
