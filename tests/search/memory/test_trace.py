from collections.abc import Iterable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from objectives.language_model import LanguageModel
from search.memory.sample import Sample
from search.memory.trace import Part, Phase, trace
from search.objective import Split
from search.optimizers import Optimizer
from search.training import TrainingRun
from search.training_params import Precision, micro_batch_size


class Classifier(Sample):
    """An 8-16-4 net without biases on 2 samples, or any other module."""

    def __init__(self, module=None) -> None:
        super().__init__()
        self._module = module

    def model(self, params) -> nn.Module:  # noqa: ARG002 - as the contract has it
        if self._module is not None:
            return self._module()
        return nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False))

    def batch(self, params, split) -> Mapping[str, Tensor]:  # noqa: ARG002 - the same
        samples = micro_batch_size(params)
        return {"inputs": torch.zeros(samples, 8), "targets": torch.zeros(samples).long()}

    def num_tokens(self, batch) -> int:
        return len(batch["targets"])

    def loss(self, model, batch) -> Tensor:
        return functional.cross_entropy(model(batch["inputs"]), batch["targets"])


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    return LanguageModel(held_out_tokens=2_000, evaluation_context=64)


class TestGolden:
    def test_the_logits_are_what_the_model_returns(self, language_model):
        params = {"batch_size": 8, "sequence_length": 64, "width": 8, "depth": 1, "heads": 2}
        vocabulary = 256  # bytes
        parts = trace(language_model, {**params, "learning_rate": 1e-3}).parts
        assert parts[Part.LOGITS] == 8 * 64 * vocabulary * 4

    def test_an_adam_step_by_hand(self):
        params = {"batch_size": 2, "clip_norm": 0.0, "weight_decay": 0.0, "optimizer": "adam"}
        traced = trace(Classifier(), params)
        # Weights of (8 x 16 + 16 x 4) x 4 B.
        assert traced.parts[Part.PARAMETERS] == 768
        assert traced.parts[Part.GRADIENTS] == 768
        # Two moments as large as the weights, and a step counter of 4 B for each of the 2.
        assert traced.parts[Part.OPTIMIZER] == 2 * 768 + 2 * 4
        # 2 x 8 x 4 B of inputs, 2 x 8 B of targets.
        assert traced.parts[Part.INPUTS] == 64 + 16
        # The sum of losses.
        assert traced.parts[Part.ACTIVATIONS] == 4
        # The larger weight's root of the second moment and its quotient, 8 x 16 x 4 B each.
        assert traced.parts[Part.TEMPORARIES] == 512 + 512
        assert traced.peak_bytes == 768 + 768 + 1_544 + 80 + 4 + 1_024
        # The second step needs what the first did; the first to get there is named.
        assert traced.peak_bytes_by_phase[Phase.STEP_2] == traced.peak_bytes
        assert traced.peak_phase is Phase.STEP_1

    def test_a_step_of_plain_sgd_keeps_no_state(self):
        params = {"batch_size": 2, "clip_norm": 0.0, "optimizer": "sgd", "momentum": 0.0}
        assert Part.OPTIMIZER not in trace(Classifier(), params).parts

    def test_a_new_model_is_its_weights(self):
        traced = trace(Classifier(), {"batch_size": 2})
        assert traced.peak_bytes_by_phase[Phase.MODEL_CREATION] == 768

    def test_activations_of_a_large_batch_by_hand(self):
        traced = trace(Classifier(), {"batch_size": 1000, "optimizer": "sgd"})
        # 16 hidden values of a sample, 4 B each, are left where the gradient of each of them is
        # beside it; the log-probabilities are gone by then. Two numbers more: the loss and the
        # weight of the targets.
        assert traced.parts[Part.ACTIVATIONS] == 1000 * 16 * 4 + 2 * 4


class TestParts:
    @pytest.mark.parametrize(
        ("precision", "optimizer", "checkpointed"),
        [
            (precision, list(Optimizer)[index % 3], bool(index % 2))
            for index, precision in enumerate(Precision)
        ],
    )
    def test_add_up_to_the_peak(self, precision, optimizer, checkpointed):
        params = {
            "batch_size": 4,
            "micro_batch_size": 2,
            "precision": precision.value,
            "optimizer": optimizer.value,
            "activation_checkpointing": checkpointed,
        }
        traced = trace(Sample(), params)
        assert sum(traced.parts.values()) == sum(traced.alive_at_peak) == traced.peak_bytes
        assert traced.peak_bytes == max(traced.peak_bytes_by_phase.values())
        assert {Part.PARAMETERS, Part.OPTIMIZER, Part.INPUTS} <= traced.parts.keys()

    def test_bf16_weights_take_half(self):
        in_fp32, in_bf16 = (
            trace(Sample(), {"batch_size": 2, "precision": precision}).parts[Part.PARAMETERS]
            for precision in ("32-true", "bf16-true")
        )
        assert in_bf16 * 2 == in_fp32

    def test_a_scaler_does_not_leave_the_update_out(self):
        params = {"batch_size": 2, "precision": "16-mixed"}
        assert trace(Sample(), params).parts[Part.OPTIMIZER] > 0


class TestEvents:
    def test_each_storage_appears_once_and_goes_at_most_once(self):
        alive = {}
        for event in trace(Sample(), {"batch_size": 4}).events:
            if event.num_bytes > 0:
                assert event.storage not in alive
                alive[event.storage] = event.num_bytes
            else:
                assert alive.pop(event.storage) == -event.num_bytes

    @pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
    def test_are_the_same_each_time(self, language_model, precision):
        params = {"batch_size": 4, "precision": precision, "activation_checkpointing": True}
        assert trace(language_model, params) == trace(language_model, params)


class TestMonotone:
    @settings(max_examples=5)
    @given(
        batch=st.integers(1, 16),
        checkpointed=st.booleans(),
        precision=st.sampled_from(["32-true", "bf16-mixed"]),
    )
    def test_a_larger_batch_never_needs_less(self, batch, checkpointed, precision):
        params = {"precision": precision, "activation_checkpointing": checkpointed}
        smaller, larger = (
            trace(Sample(), {**params, "batch_size": size}).peak_bytes
            for size in (batch, batch + 1)
        )
        assert smaller <= larger

    def test_checkpointing_keeps_fewer_activations(self, language_model):
        params = {"batch_size": 16, "depth": 4}
        plain, checkpointed = (
            trace(language_model, {**params, "activation_checkpointing": choice})
            for choice in (False, True)
        )
        assert checkpointed.peak_bytes < plain.peak_bytes
        assert checkpointed.parts[Part.ACTIVATIONS] < plain.parts[Part.ACTIVATIONS] / 4
        assert Part.RECOMPUTED in checkpointed.parts
        assert Part.RECOMPUTED not in plain.parts


class TestAccumulation:
    def test_more_micro_batches_add_only_their_inputs(self):
        two, five = (
            trace(Classifier(), {"batch_size": count * 4, "micro_batch_size": 4})
            for count in (2, 5)
        )
        assert five.peak_bytes - two.peak_bytes == 3 * 4 * (8 * 4 + 8)

    def test_a_second_micro_batch_finds_the_gradients_of_the_first(self):
        one, two = (
            trace(Sample(), {"batch_size": size, "micro_batch_size": 8}) for size in (8, 16)
        )
        assert two.parts[Part.GRADIENTS] >= one.parts[Part.GRADIENTS]
        assert two.peak_bytes > one.peak_bytes


class _Careful(nn.Module):
    """Looks at its own numbers, as models with a guard do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        result = self.linear(x)
        if torch.isnan(result).any() or not (result < 1e30).all() or result.max().item() > 1e30:
            raise AssertionError
        self.calls += 1
        return result


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x[:, None])[:, 0]


class TestAnyModel:
    @pytest.mark.parametrize(
        "module",
        [
            _Careful,
            _Encoder,
            lambda: nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4), nn.Dropout(0.5)),
            lambda: nn.Sequential(
                nn.Unflatten(1, (2, 4)),
                nn.Conv1d(2, 4, 3, padding=1),
                nn.AdaptiveAvgPool1d(1),
                nn.Flatten(),
            ),
        ],
    )
    @pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
    def test_is_traced(self, module, precision):
        class Any(Classifier):
            def loss(self, model, batch):
                inputs = batch["inputs"].to(next(model.parameters()).dtype)
                return functional.cross_entropy(model(inputs).float(), batch["targets"])

        traced = trace(Any(module), {"batch_size": 4, "precision": precision})
        assert traced.parts[Part.PARAMETERS] > 0


class TestTheCaller:
    def test_keeps_its_random_numbers_and_its_precision(self):
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.manual_seed(3)
        before = torch.get_float32_matmul_precision()
        trace(Sample(), {"batch_size": 2, "precision": "tf32"})
        assert torch.equal(torch.rand(4), expected)
        assert torch.get_float32_matmul_precision() == before

    def test_is_told_of_a_fault_of_the_model(self):
        def broken() -> nn.Module:
            return nn.Linear(3, 3)

        with pytest.raises(RuntimeError, match="dim"):
            trace(Classifier(broken), {"batch_size": 2})

    @pytest.mark.parametrize("num_steps", [0, 3])
    def test_asks_for_one_or_two_steps(self, num_steps):
        with pytest.raises(ValueError, match="num_steps"):
            trace(Sample(), {"batch_size": 2}, num_steps=num_steps)

    def test_gets_no_step_it_did_not_ask_for(self):
        phases = {event.phase for event in trace(Sample(), {"batch_size": 2}, num_steps=1).events}
        assert Phase.STEP_2 not in phases


def test_the_sample_really_trains():
    torch.set_num_threads(1)
    run = TrainingRun(Sample(), {"batch_size": 2}, num_tokens=512, device=torch.device("cpu"))
    first = run.step().loss.item()
    while not run.done:
        last = run.step().loss.item()
    assert last < first
    batches: Iterable = Sample().data({"batch_size": 2}, Split.HELD_OUT, seed=0)
    assert len(list(batches)) == 2
