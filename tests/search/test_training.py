import gc
import io
import itertools
import math
import re
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from objectives.language_model import LanguageModel
from search.errors import InputError
from search.objective import Split
from search.optimizers import Implementation, Optimizer, has_torchao, optimizers_here, refusal
from search.training import TrainingRun, learning_rate_factor
from search.training_params import Precision, TrainingParams

CPU = torch.device("cpu")
needs_torchao = pytest.mark.skipif(not has_torchao(), reason="torchao is not installed")
SMALL = {
    "width": 32,
    "heads": 2,
    "depth": 2,
    "sequence_length": 32,
    "batch_size": 8,
    "learning_rate": 3e-3,
}
TINY = {"width": 4, "heads": 1, "depth": 1}
COMPUTED_ON_CPU = [precision for precision in Precision if precision is not Precision.TF32]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def objective() -> LanguageModel:
    return LanguageModel(held_out_tokens=2_000, evaluation_context=64)


class Louder(LanguageModel):
    """Its loss is so large that gradients in half precision overflow."""

    def loss(self, model, batch):
        return 1e4 * super().loss(model, batch)


class Judged(LanguageModel):
    """Remembers what it was judged on."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.seen = []

    def evaluate(self, model, batches):
        self.seen.append(list(batches))
        return super().evaluate(model, self.seen[-1])


def new_run(objective, num_tokens=2_048, **params) -> TrainingRun:
    return TrainingRun(objective, {**SMALL, **params}, num_tokens=num_tokens, device=CPU)


def finished(run: TrainingRun) -> list[float]:
    """The loss of each step to the end."""
    losses = []
    while not run.done:
        losses.append(run.step().loss.item())
    return losses


def weights(run: TrainingRun) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


def assert_equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


class TestAccumulation:
    @pytest.mark.parametrize("micro", [4, 8, 16])
    def test_equals_one_large_batch(self, objective, micro):
        # 2 steps of 32 x 16 tokens, then one of 21 x 16 + 5
        wanted = {"batch_size": 32, "sequence_length": 16, "optimizer": "sgd", "learning_rate": 0.1}
        tokens = 2 * 512 + 341
        whole = new_run(objective, tokens, **wanted)
        cut = new_run(objective, tokens, **wanted, micro_batch_size=micro)
        assert finished(cut) == pytest.approx(finished(whole), rel=1e-5)
        torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-4, atol=1e-6)

    def test_weighs_each_token_alike_in_an_uneven_step(self, objective):
        run = new_run(objective, 3 * 32 + 5)
        batches = objective.data(run.params, Split.TRAIN, seed=0, num_tokens=run.num_tokens)
        losses = [objective.loss(run.model, batch).item() for batch in batches]
        mean = (96 * losses[0] + 5 * losses[1]) / 101
        assert run.step().loss.item() == pytest.approx(mean, rel=1e-6)

    @settings(max_examples=30)
    @given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 300))
    def test_a_step_holds_the_same_samples_however_it_is_cut(self, objective, micro, num_tokens):
        wanted = {**TINY, "batch_size": 12, "sequence_length": 5}
        steps = [
            steps_of(new_run(objective, num_tokens, **wanted, micro_batch_size=size))
            for size in (micro, "equal")
        ]
        assert steps[0] == steps[1]
        assert sum(sum(map(len, step)) for step in steps[0]) == num_tokens


def steps_of(run: TrainingRun) -> list[list[list[int]]]:
    """The targets of each sample of each step."""
    steps = []
    while True:
        try:
            shares = run._next_shares()
        except InputError:
            return steps
        steps.append([row for share in shares for row in share.batch["targets"].tolist()])


class TestPrecision:
    @pytest.mark.parametrize("precision", COMPUTED_ON_CPU)
    def test_the_loss_falls(self, objective, precision):
        losses = finished(new_run(objective, 40 * 256, precision=precision))
        assert sum(losses[-4:]) < 0.8 * sum(losses[:4])

    def test_fp32_is_the_short_name_of_32_true(self):
        assert Precision("fp32") is Precision.FP32

    def test_tf32_warns_and_computes_in_fp32(self, objective):
        with pytest.warns(UserWarning, match="tf32 computes in fp32 on a CPU"):
            run = new_run(objective, precision="tf32")
        assert finished(run) == finished(new_run(objective))

    def test_bf16_true_keeps_weights_and_moments_in_bf16(self, objective):
        run = new_run(objective, precision="bf16-true")
        run.step()
        assert {tensor.dtype for tensor in run.model.parameters()} == {torch.bfloat16}
        (optimizer,) = run.optimizers
        moments = [state["exp_avg"].dtype for state in optimizer.state.values()]
        assert set(moments) == {torch.bfloat16}

    @pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
    def test_mixed_keeps_weights_in_fp32_and_computes_in_less(self, objective, precision):
        run = new_run(objective, precision=precision)
        seen = []
        run.model.head.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
        run.step()
        assert {tensor.dtype for tensor in run.model.parameters()} == {torch.float32}
        assert seen == [torch.bfloat16 if precision == "bf16-mixed" else torch.float16]

    def test_overflow_steps_are_counted_and_change_nothing(self):
        louder = Louder(held_out_tokens=2_000)
        run = new_run(louder, 20 * 256, precision="16-mixed")
        before = weights(run)
        while run.overflow_steps == run.tokens_seen // 256:  # none has succeeded yet
            assert_equal(weights(run), before)
            run.step()
        num_halvings = round(math.log2(2**16 / run._scaler.get_scale()))
        assert run.overflow_steps == num_halvings > 0
        finished(run)
        assert all(tensor.isfinite().all() for tensor in run.model.parameters())
        assert not all(map(torch.equal, weights(run).values(), before.values()))

    def test_without_overflow_none_is_counted(self, objective):
        run = new_run(objective)
        finished(run)
        assert run.overflow_steps == 0


class TestTwin:
    @pytest.mark.parametrize("optimizer", sorted(set(Optimizer) - {Optimizer.ADAMW_8BIT}))
    def test_equals_a_plain_loop_bit_for_bit(self, objective, optimizer):
        run = new_run(objective, 2_048, optimizer=optimizer, warmup_fraction=0.25)
        losses = finished(run)
        model, plain_losses = plain_loop(objective, optimizer)
        assert losses == plain_losses
        assert_equal(weights(run), model.state_dict())


def plain_loop(objective, optimizer) -> tuple[nn.Module, list[float]]:
    """What a person would write for 8 steps of 256 tokens, 2 of them warm-up."""
    torch.manual_seed(0)
    model = objective.model(SMALL)
    update = {
        "adamw": lambda params: torch.optim.AdamW(params, weight_decay=0.01),
        "adam": lambda params: torch.optim.Adam(params, weight_decay=0.01),
        "sgd": lambda params: torch.optim.SGD(params, momentum=0.9, weight_decay=0.01),
        "adafactor": lambda params: torch.optim.Adafactor(params, weight_decay=0.01),
    }[optimizer](model.parameters())
    losses = []
    batches = objective.data(SMALL, Split.TRAIN, seed=0, num_tokens=2_048)
    for step, batch in enumerate(batches):
        factor = 0.5 if step == 0 else 0.5 * (1 + math.cos(math.pi * max(0, step - 2) / 6))
        for group in update.param_groups:
            group["lr"] = 3e-3 * factor
        update.zero_grad()
        loss = objective.loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        losses.append(loss.item())
    return model, losses


class TestLearningRate:
    @pytest.mark.parametrize(
        ("before", "after", "factor"),
        [
            (0.00, 0.05, 0.5),  # half of the warm-up
            (0.05, 0.10, 1.0),  # its end
            (0.10, 0.15, 1.0),  # the cosine starts from 1
            (0.325, 0.4, 0.5 * (1 + math.sqrt(0.5))),  # a quarter of it: cos 45 degrees
            (0.55, 0.60, 0.5),  # its middle
            (1.00, 1.00, 0.0),  # its end, which no step sees
        ],
    )
    def test_warms_up_then_follows_a_cosine(self, before, after, factor):
        assert learning_rate_factor(before, after, 0.1) == pytest.approx(factor, abs=1e-12)

    @given(st.integers(1, 2_000), st.floats(0, 0.99))
    def test_every_step_learns_and_none_unlearns(self, num_steps, warmup):
        factors = [
            learning_rate_factor(step / num_steps, (step + 1) / num_steps, warmup)
            for step in range(num_steps)
        ]
        assert all(0 < factor <= 1 for factor in factors)
        top = factors.index(max(factors))
        assert factors[: top + 1] == sorted(factors[: top + 1])
        assert factors[top:] == sorted(factors[top:], reverse=True)

    def test_the_first_step_moves_the_weights(self, objective):
        run = new_run(objective, 100 * 256, warmup_fraction=0.5)
        before = weights(run)
        run.step()
        assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(3e-3 / 50)
        assert not torch.equal(run.model.head.weight, before["head.weight"])


class TestClipping:
    def test_bounds_the_step(self, objective):
        plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "warmup_fraction": 0.0}
        run = new_run(objective, clip_norm=1e-3, learning_rate=1.0, **plain)
        before = weights(run)
        run.step()
        moved = [weights(run)[name] - tensor for name, tensor in before.items()]
        norm = torch.linalg.vector_norm(torch.cat([change.flatten() for change in moved]))
        assert norm.item() == pytest.approx(1e-3, rel=1e-2)  # weights are rounded near 0.1

    def test_0_leaves_gradients_as_they_are(self, objective):
        off, wide = (
            new_run(objective, clip_norm=clip, optimizer="sgd", learning_rate=0.1)
            for clip in (0.0, 1e9)
        )
        assert finished(off) == pytest.approx(finished(wide), rel=1e-6)


class TestActivationCheckpointing:
    @pytest.mark.parametrize("precision", COMPUTED_ON_CPU)
    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_changes_no_number(self, objective, precision, dropout):
        results = []
        for checkpointed in (False, True):
            wanted = {"precision": precision, "dropout": dropout, "micro_batch_size": 4}
            run = new_run(objective, 1_024, **wanted, activation_checkpointing=checkpointed)
            results.append((finished(run), run.evaluate(), weights(run)))
        assert_equal(*results)

    @pytest.mark.parametrize("precision", COMPUTED_ON_CPU)
    def test_computes_blocks_twice(self, objective, precision):
        run = new_run(objective, 256, precision=precision, activation_checkpointing=True)
        calls = []
        for block in run.model.blocks:
            block.attention.register_forward_hook(lambda *_: calls.append(1))
        run.step()
        assert len(calls) == 4  # 2 blocks, forward and again in the backward pass

    def test_weights_load_with_and_without(self, objective):
        plain = new_run(objective)
        checkpointed = new_run(objective, seed=1, activation_checkpointing=True)
        assert list(weights(plain)) == list(weights(checkpointed))
        plain.step()
        checkpointed.model.load_state_dict(plain.model.state_dict())
        assert checkpointed.evaluate() == plain.evaluate()
        objective.model(SMALL).load_state_dict(checkpointed.model.state_dict())


class TestDeterminism:
    def results(self, objective, **params):
        run = new_run(objective, dropout=0.1, **params)
        return finished(run), weights(run), run.evaluate()

    @pytest.mark.parametrize("precision", COMPUTED_ON_CPU)
    def test_two_runs_are_bit_identical(self, objective, precision):
        one, other = (self.results(objective, precision=precision) for _ in range(2))
        assert one[0] == other[0]
        assert_equal(one[1], other[1])
        assert one[2] == other[2]

    def test_another_seed_is_another_run(self, objective):
        one, other = (self.results(objective, seed=seed) for seed in (0, 1))
        assert one[0] != other[0]

    def test_evaluating_on_the_way_changes_nothing(self, objective):
        run = new_run(objective, dropout=0.1)
        losses = []
        while not run.done:
            losses.append(run.step().loss.item())
            run.evaluate()
        assert losses == self.results(objective)[0]


class TestResume:
    @pytest.mark.parametrize(
        ("optimizer", "precision"),
        [
            ("adamw", "32-true"),
            ("adam", "16-mixed"),
            ("sgd", "bf16-true"),
            pytest.param("adamw-8bit", "bf16-true", marks=needs_torchao),
        ],
    )
    def test_equals_an_uninterrupted_run_bit_for_bit(self, objective, optimizer, precision):
        wanted = {"optimizer": optimizer, "precision": precision, "dropout": 0.1}
        wanted |= {"micro_batch_size": 4}
        whole = new_run(objective, 1_800, **wanted)
        losses = finished(whole)
        first = new_run(objective, 1_800, **wanted)
        before = [first.step().loss.item() for _ in range(3)]
        state = stored(first.state_dict())
        finished(new_run(objective, seed=7))  # another trial in the same process
        second = new_run(objective, 1_800, **wanted)
        second.load_state_dict(state)
        assert second.tokens_seen == 3 * 256
        assert before + finished(second) == losses
        assert_equal(weights(second), weights(whole))
        assert second.evaluate() == whole.evaluate()

    def test_overflow_steps_are_remembered(self):
        louder = Louder(held_out_tokens=2_000)
        first = new_run(louder, precision="16-mixed")
        first.step()
        second = new_run(louder, precision="16-mixed")
        second.load_state_dict(stored(first.state_dict()))
        assert second.overflow_steps == first.overflow_steps == 1


def test_a_checkpoint_is_made_of_what_is_there_already(objective):
    # Saving takes no memory of the device: only the states of generators are copied, on the host.
    run = new_run(objective)
    run.step()
    state = run.state_dict()
    copied = [state["model"], *state["optimizers"][0]["state"].values()]
    there = [*run.model.state_dict().values()]
    there += [tensor for kept in run.optimizers[0].state.values() for tensor in kept.values()]
    assert {tensor.data_ptr() for kept in copied for tensor in kept.values()} == {
        tensor.data_ptr() for tensor in there
    }


def stored(state):
    """The state as it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class TestFairness:
    @settings(max_examples=25)
    @given(
        num_tokens=st.integers(1, 400),
        batch_size=st.sampled_from([1, 2, 4, 8]),
        micro=st.sampled_from([1, 2, 4, 8]),
        length=st.integers(1, 40),
    )
    def test_every_finished_run_saw_its_tokens(
        self, objective, num_tokens, batch_size, micro, length
    ):
        params = {**TINY, "batch_size": batch_size, "sequence_length": length}
        run = new_run(objective, num_tokens, **params, micro_batch_size=min(micro, batch_size))
        seen = 0
        while not run.done:
            step_tokens = run.step().num_tokens
            assert 0 < step_tokens <= batch_size * length
            seen += step_tokens
        assert seen == run.tokens_seen == num_tokens

    def test_every_run_is_judged_on_the_same_bytes(self):
        judged = Judged(held_out_tokens=1_000, evaluation_context=64)
        for length, batch_size, seed in ((16, 4, 0), (200, 16, 3)):
            new_run(judged, sequence_length=length, batch_size=batch_size, seed=seed).evaluate()
        assert_equal(*judged.seen)
        assert sum(batch["targets"].numel() for batch in judged.seen[0]) == 999

    def test_data_that_end_early_are_named(self, objective):
        run = TrainingRun(objective, SMALL, num_tokens=99, device=CPU, batches=iter(()))
        with pytest.raises(InputError, match="the data ended after 0 of 99 tokens"):
            run.step()


class TestEvaluation:
    def test_leaves_dropout_out(self, objective):
        run = new_run(objective, dropout=0.5)
        assert run.evaluate() == run.evaluate()

    def test_keeps_no_gradient(self, objective):
        run = new_run(objective)
        run.evaluate()
        assert all(tensor.grad is None for tensor in run.model.parameters())

    def test_held_out_batches_may_be_handed_in(self, objective):
        held_out = [objective.batch(SMALL, Split.HELD_OUT)]
        run = TrainingRun(objective, SMALL, num_tokens=9, device=CPU, held_out=held_out)
        assert run.evaluate() == run.evaluate()
        assert run.evaluate() != new_run(objective).evaluate()


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_a_step_runs_on_fake_tensors(objective, precision, checkpointed):
    """Fake tensors have no values; only a scaler asks for one."""
    params = {**SMALL, "dropout": 0.1, "precision": precision, "micro_batch_size": 4}
    params |= {"activation_checkpointing": checkpointed}
    with FakeTensorMode():
        batches = (objective.batch(params, Split.TRAIN) for _ in itertools.count())
        run = TrainingRun(objective, params, num_tokens=9_999, device=CPU, batches=batches)
        run.step()
        assert run.step().num_tokens == 256


PLAIN = {"clip_norm": 0.0}
AT_ONCE = {"clip_norm": 0.0, "step_in_backward": True}


class TestStepInBackward:
    @pytest.mark.parametrize("optimizer", optimizers_here())
    def test_changes_no_number(self, objective, optimizer):
        results = []
        for wanted in (PLAIN, AT_ONCE):
            run = new_run(objective, 1_024, optimizer=optimizer, **wanted)
            results.append((finished(run), run.evaluate(), weights(run)))
        assert_equal(*results)

    def test_leaves_no_gradient(self, objective):
        run = new_run(objective, **AT_ONCE)
        run.step()
        assert all(param.grad is None for param in run.model.parameters())

    def test_keeps_no_model_that_is_let_go(self, objective):
        run = new_run(objective, **AT_ONCE)
        run.step()
        model = weakref.ref(run.model)
        del run
        gc.collect()
        assert model() is None

    def test_goes_on_from_a_checkpoint(self, objective):
        first, second = (new_run(objective, 2_048, **AT_ONCE) for _ in range(2))
        first.step()
        second.load_state_dict(stored(first.state_dict()))
        assert_equal(*((finished(run), weights(run)) for run in (first, second)))

    @pytest.mark.parametrize(
        ("wanted", "mend"),
        [
            ({"clip_norm": 1.0}, "set clip_norm to 0"),
            ({"precision": "16-mixed"}, "a precision other than 16-mixed"),
            ({"micro_batch_size": 4}, "set micro_batch_size to equal"),
            ({"micro_batch_size": "auto"}, "set micro_batch_size to equal"),
        ],
    )
    def test_what_needs_all_gradients_is_refused(self, wanted, mend):
        with pytest.raises(ValueError, match=mend):
            TrainingParams.of({"batch_size": 8, **AT_ONCE, **wanted})


@pytest.mark.parametrize("implementation", Implementation)
@pytest.mark.parametrize("optimizer", optimizers_here())
def test_implementations_of_an_optimizer_agree(objective, optimizer, implementation):
    chosen = {"optimizer": optimizer, "optimizer_implementation": implementation}
    if refused := refusal(optimizer, implementation):
        with pytest.raises(ValueError, match=re.escape(refused)):
            TrainingParams.of(chosen)
        return
    plain, run = (
        new_run(objective, 512, **params) for params in ({"optimizer": optimizer}, chosen)
    )
    losses, found = finished(plain), finished(run)
    torch.testing.assert_close(found, losses, rtol=1e-5, atol=1e-6)


@needs_torchao
def test_8_bits_learn_as_adamw_does(objective):
    losses = [
        finished(new_run(objective, 8_192, optimizer=name)) for name in ("adamw", "adamw-8bit")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1] != losses[0]


def test_gradients_may_be_kept_as_zeros(objective):
    run = new_run(objective, zero_grad_to_none=False)
    run.step()
    assert all(not param.grad.any() for param in run.model.parameters())
