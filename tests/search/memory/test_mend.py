from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import search.memory.ways
from search.errors import MachineError
from search.memory.feasibility import DoesNotFit, Fits, judge
from search.memory.machine import CpuMemory
from search.memory.mend import Mend, mends
from search.memory.prediction import Predictor
from search.memory.sample import Sample
from search.memory.ways import Keeps, Length, changed, ways
from search.optimizers import has_torchao
from search.results import PredictedMemory
from search.training_params import TrainingParams, micro_batch_size
from search.units import MIB

LENGTH = Length(name="sequence_length")
PARAMS = {
    "batch_size": 16,
    "micro_batch_size": "equal",
    "sequence_length": 64,
    "precision": "32-true",
    "optimizer": "adamw",
    "activation_checkpointing": False,
}


def needed_bytes(params) -> int:
    """40 MiB of weights and their like, and 64 KiB for each position of a micro-batch."""
    halves = {"adamw": 8, "adam": 8, "sgd": 6, "adamw-8bit": 5, "adafactor": 4}
    states = halves[params["optimizer"]] * 5 * MIB
    width = 2 if params["precision"].startswith("bf16") else 4
    activations = micro_batch_size(params) * params["sequence_length"] * 16384 * width
    activations //= {False: 1, True: 4, "every-2": 2}[params["activation_checkpointing"]]
    return states * (2 if params["precision"] == "bf16-true" else 4) // 4 + activations


def predict(params) -> PredictedMemory:
    return PredictedMemory(
        expected_bytes=needed_bytes(params),
        low_bytes=needed_bytes(params),
        high_bytes=needed_bytes(params) + MIB,
        phase="step_2",
    )


def seconds_per_token(params) -> float:
    """A micro-batch costs a start; checkpointing a third more; bf16 half."""
    seconds = 1 + 0.1 / micro_batch_size(params)
    seconds *= 1 + {False: 0, True: 2, "every-2": 1}[params["activation_checkpointing"]] / 6
    return seconds / (2 if params["precision"].startswith("bf16") else 1)


def offered(params, budget_bytes, *, seconds=seconds_per_token) -> list[Mend]:
    return list(
        mends(
            params,
            predict,
            budget_bytes,
            seconds_per_token=seconds,
            length=LENGTH,
        )
    )


class TestGolden:
    # 40 MiB and 16 x 64 x 64 KiB = 64 MiB, and 1 MiB to be sure: 105 MiB
    def test_what_an_engineer_is_offered_in_order(self):
        found = offered(PARAMS, 80 * MIB)
        assert [str(mend) for mend in found] == [
            "micro_batch_size 8",  # 73 MiB
            "activation_checkpointing every-2",  # 73 MiB
            "precision bf16-mixed",  # 73 MiB
            "precision bf16-true",  # 53 MiB
            "sequence_length 32",  # 73 MiB; three quarters are 89 MiB, adafactor 85 MiB
        ]
        first = found[0]
        assert first.predicted.high_bytes == 73 * MIB
        assert first.slow_down == pytest.approx((1 + 0.1 / 8) / (1 + 0.1 / 16))

    def test_nothing_is_offered_where_no_change_is_enough(self):
        assert offered(PARAMS, 20 * MIB) == []

    def test_the_largest_micro_batch_is_offered(self):
        # 41 MiB and 4 MiB a sample: 2 of 16 fit into 49 MiB
        first = offered(PARAMS, 49 * MIB)[0]
        assert (first.name, first.value) == ("micro_batch_size", 2)

    def test_of_changes_that_keep_the_result_the_faster_comes_first(self):
        def seconds(params):
            return 16 / micro_batch_size(params)

        assert offered(PARAMS, 80 * MIB, seconds=seconds)[0].name == "activation_checkpointing"

    def test_a_batch_of_one_that_is_checkpointed_in_bf16_with_sgd_has_only_its_length(self):
        params = {
            **PARAMS,
            "batch_size": 1,
            "activation_checkpointing": True,
            "precision": "bf16-true",
            "optimizer": "sgd",
        }
        assert [way.name for way in ways(params, LENGTH)] == ["sequence_length"]
        assert ways(params, None) == ()

    def test_lengths_are_whole(self):
        (way,) = [
            way
            for way in ways({**PARAMS, "sequence_length": 100}, LENGTH)
            if way.name == "sequence_length"
        ]
        assert way.values == (75, 50, 25)

    @pytest.mark.parametrize(
        ("searched", "tried"),
        [
            ((), (48, 32, 16)),
            ((16, 24, 40, 64, 128), (40, 24, 16)),
            ((64, 128), (48, 32, 16)),
            (range(4, 129, 4), (48, 32, 16)),
            (range(4, 129, 5), ()),
        ],
    )
    def test_searched_lengths_are_tried_before_others(self, searched, tried):
        length = Length(name="sequence_length", searched=searched)
        values = [way.values for way in ways(PARAMS, length) if way.name == length.name]
        assert values == ([tried] if tried else [])


class TestWays:
    def named(self, **chosen):
        return {
            (way.name, value) for way in ways({**PARAMS, **chosen}, None) for value in way.values
        }

    def test_the_loss_is_cut_where_the_objective_can(self):
        assert ("loss_chunks", 8) not in self.named()
        assert ("loss_chunks", 8) in self.named(loss_chunks=1)
        assert ("loss_chunks", 8) not in self.named(loss_chunks=4)

    def test_steps_in_the_backward_pass_need_gradients_left_as_they_are(self):
        assert ("step_in_backward", True) not in self.named()
        assert ("step_in_backward", True) in self.named(clip_norm=0.0)
        accumulated = self.named(clip_norm=0.0, micro_batch_size=4)
        assert ("step_in_backward", True) not in accumulated

    def test_a_smaller_state_is_offered_where_there_is_one(self, monkeypatch):
        monkeypatch.setattr(search.memory.ways, "has_torchao", lambda: False)
        optimizers = {
            name: {value for way, value in self.named(optimizer=name) if way == "optimizer"}
            for name in ("adamw", "adam", "sgd", "adafactor")
        }
        assert optimizers == {
            "adamw": {"adafactor"},
            "adam": {"adafactor"},
            "sgd": set(),
            "adafactor": set(),
        }

    @pytest.mark.skipif(not has_torchao(), reason="torchao is not installed")
    def test_8_bits_learn_the_same_and_come_before_what_learns_otherwise(self):
        found = [(way.keeps, way.values) for way in ways(PARAMS, None) if way.name == "optimizer"]
        assert found == [(Keeps.PROBLEM, ("adamw-8bit",)), (Keeps.NOTHING, ("adafactor",))]

    def test_what_is_partly_checkpointed_may_be_wholly(self):
        partly = self.named(activation_checkpointing="every-2")
        assert ("activation_checkpointing", True) in partly
        assert ("activation_checkpointing", "every-2") not in partly


class TestCosts:
    def test_what_cannot_save_enough_is_not_asked_for(self):
        asked = []

        def counted(params):
            asked.append(params)
            return predict(params)

        # 105 MiB, of which states are 20: without them it would be 85.
        parts = {"parameters": 20 * MIB, "optimizer": 20 * MIB, "activations": 64 * MIB}
        refused = replace(predict(PARAMS), parts=parts)
        list(
            mends(
                PARAMS,
                counted,
                80 * MIB,
                seconds_per_token=seconds_per_token,
                length=None,
                refused=refused,
            )
        )
        assert {params["optimizer"] for params in asked} == {"adamw"}
        assert {params["activation_checkpointing"] for params in asked} == {False, "every-2"}

    def test_the_first_mend_asks_for_no_others(self):
        asked = []

        def counted(params):
            asked.append(params)
            return predict(params)

        next(
            mends(
                PARAMS,
                counted,
                80 * MIB,
                seconds_per_token=seconds_per_token,
                length=LENGTH,
            )
        )
        # it costs less than a hundredth: not even checkpointing is looked at
        assert asked == [{**PARAMS, "micro_batch_size": 8}]

    def test_all_it_may_ask_for_is_announced(self):
        asked = []

        def counted(params):
            asked.append(params)
            return predict(params)

        found = mends(
            PARAMS,
            counted,
            0,
            seconds_per_token=seconds_per_token,
            length=None,
        )
        assert list(found) == []
        assert asked == list(changed(PARAMS))


class TestRefusals:
    def test_a_change_the_model_refuses_is_not_offered(self):
        def picky(params):
            if params["activation_checkpointing"] or params["sequence_length"] == 48:
                raise ValueError
            if params["precision"] != "32-true":
                raise SystemExit
            return predict(params)

        found = mends(
            PARAMS,
            picky,
            80 * MIB,
            seconds_per_token=seconds_per_token,
            length=LENGTH,
        )
        assert [mend.name for mend in found] == ["micro_batch_size", "sequence_length"]

    def test_a_machine_that_cannot_measure_is_told(self):
        def broken(_params):
            raise MachineError

        with pytest.raises(MachineError):
            list(mends(PARAMS, broken, MIB, seconds_per_token=seconds_per_token, length=None))


CONFIGURATIONS = st.fixed_dictionaries(
    {
        "batch_size": st.sampled_from([1, 6, 16, 30]),
        "micro_batch_size": st.just("equal"),
        "sequence_length": st.sampled_from([3, 64, 100]),
        "precision": st.sampled_from(["32-true", "bf16-mixed", "bf16-true", "16-mixed"]),
        "optimizer": st.sampled_from(["adamw", "sgd"]),
        "activation_checkpointing": st.booleans(),
    }
)


class TestProperties:
    @given(params=CONFIGURATIONS, budget=st.integers(0, 250))
    def test_each_fits_changes_one_thing_and_keeps_the_batch(self, params, budget):
        for mend in offered(params, budget * MIB):
            assert isinstance(judge(mend.params, predict, budget * MIB), Fits)
            differing = [name for name in params if mend.params[name] != params[name]]
            assert differing == [mend.name]
            assert mend.params["batch_size"] == params["batch_size"]
            assert params["batch_size"] % micro_batch_size(mend.params) == 0
            TrainingParams.of(mend.params)

    @given(params=CONFIGURATIONS, budget=st.integers(0, 250))
    def test_none_is_worse_than_one_that_was_passed_over(self, params, budget):
        found = offered(params, budget * MIB)
        ranks = [(mend.keeps, mend.slow_down) for mend in found]
        assert ranks == sorted(ranks)
        by_name = {(mend.name, mend.keeps): mend.value for mend in found}
        for way in ways(params, LENGTH):
            fitting = [
                value
                for value in way.values
                if isinstance(judge({**params, way.name: value}, predict, budget * MIB), Fits)
            ]
            # offered is what fits, and of that the least change
            assert by_name.get((way.name, way.keeps)) == (fitting[0] if fitting else None)

    @given(params=CONFIGURATIONS)
    def test_values_go_from_the_least_change_to_the_most(self, params):
        for way in ways(params, LENGTH):
            numbers = [value for value in way.values if isinstance(value, int)]
            assert numbers == sorted(numbers, reverse=True)
        assert [way.keeps for way in ways(params, None)] == sorted(
            way.keeps for way in ways(params, None)
        )


def test_with_a_real_model_a_mend_fits(tmp_path):
    params = {**PARAMS, "width": 32, "depth": 4, "learning_rate": 1e-3}
    predicts = Predictor(Sample(), CpuMemory(overhead_bytes=1000), tmp_path)
    budget_bytes = predicts(params).high_bytes - 1
    assert isinstance(judge(params, predicts, budget_bytes), DoesNotFit)

    def seconds(params):
        return predicts.work(params).num_bytes / params["sequence_length"]

    found = list(
        mends(
            params,
            predicts,
            budget_bytes,
            seconds_per_token=seconds,
            length=LENGTH,
        )
    )
    assert found[0].keeps is Keeps.RESULT
    assert all(mend.predicted.high_bytes <= budget_bytes for mend in found)
    by_name = {mend.name: mend for mend in found}
    # more operators for the same tokens; activations computed twice
    assert by_name["micro_batch_size"].slow_down > 1
    assert by_name["activation_checkpointing"].slow_down > 1
