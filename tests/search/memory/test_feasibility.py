import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.feasibility import DoesNotFit, Fits, judge
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
