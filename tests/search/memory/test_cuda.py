from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from objectives.language_model import LanguageModel
from search.memory.cuda import Cuda
from search.memory.events import Part, Phase
from search.memory.trace import record, trace, trace_of
from search.training_params import Precision

GPU = torch.device("cpu", 0)
A100 = Cuda(architecture=(8, 0))
WORKSPACE = 8_519_680


def numbers(*shape, **options):
    return torch.empty(shape, device=GPU, **options)


def appeared(run):
    """Name and bytes of every block in the order it appears."""
    events = record(run, A100)
    return [(e.operator.split(".")[1], e.num_bytes) for e in events if e.num_bytes > 0]


def test_a_step_of_two_layers_by_hand():
    def run(_):
        with GPU:
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4, bias=False))
        x = torch.empty(1000, 8).to(GPU)
        model(x).backward(numbers(1000, 4))
        return model

    assert appeared(run) == [
        # Weights of 16 x 8, a bias of 16, weights of 4 x 16, at 4 B each.
        ("empty", 512),
        ("empty", 64),
        ("empty", 256),
        # 1000 x 8 inputs; before they are moved they lie on the host and count nothing.
        ("_to_copy", 32_000),
        # 1000 x 16 sums, and the workspace of the first product; ReLU; 1000 x 4 results.
        ("addmm", 64_000),
        ("addmm", WORKSPACE),
        ("relu", 64_000),
        ("mm", 16_000),
        # The gradient given, that of the last weights, with the workspace of the backward thread.
        ("empty", 16_000),
        ("mm", 256),
        ("mm", WORKSPACE),
        # The gradient of 1000 x 16 hidden values, twice; of the first weights and the bias.
        ("mm", 64_000),
        ("threshold_backward", 64_000),
        ("mm", 512),
        ("sum", 64),
    ]
    # The most at once: when the second gradient of hidden values appears. The first sums are gone
    # since ReLU ran; ReLU's results are still there.
    parts = 512 + 64 + 256 + 32_000 + 64_000 + 16_000 + 16_000 + 256 + 2 * 64_000 + 2 * WORKSPACE
    assert trace_of(record(run, A100)).peak_bytes == parts


def kept_after_forward(dropout):
    """Bytes alive after the forward pass of 2 post-norm encoder layers: B 8, T 32, E 64, F 256."""

    def run(recorder):
        with GPU:
            layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=dropout, batch_first=True)
            model = nn.TransformerEncoder(layer, 2)
        out = model(numbers(8, 32, 64))
        recorder.phase = Phase.EVALUATION
        return model, out

    events = record(run, A100)
    return sum(event.num_bytes for event in events if event.phase is not Phase.EVALUATION)


def test_an_encoder_with_dropout_keeps_its_masks_and_what_they_let_through():
    # In each layer two masks over B T E of one byte; over B T F a mask and the values that are
    # left, which the second linear map reads. Dropout in attention keeps nothing.
    masks = 2 * 8 * 32 * (2 * 64 + 256 * (1 + 4))
    assert kept_after_forward(0.1) - kept_after_forward(0.0) == masks


def test_dropout_at_its_ends():
    def names(rate):
        return [name for name, _ in appeared(lambda _: functional.dropout(numbers(8), rate))]

    assert names(0.0) == ["empty"]
    assert names(0.5) == ["empty", "native_dropout", "native_dropout"]
    assert names(1.0) == ["empty", "zeros", "mul"]


def updated(kind, *, clip=None, **options):
    """The most bytes of two steps over 4 weights of 64 x 64, without the workspaces."""

    def run(_):
        with GPU:
            model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
        optimizer = kind(model.parameters(), lr=0.1, **options)
        for _ in range(2):
            model(numbers(1, 64)).backward(numbers(1, 64))
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, **clip)
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    events = record(run, A100)
    return trace_of([event for event in events if event.part is not Part.WORKSPACE]), events


class TestOptimizers:
    WEIGHT = 64 * 64 * 4

    def over_states(self, **options):
        """What AdamW needs in its step beside weights, gradients, moments, and a few numbers."""
        return updated(torch.optim.AdamW, **options)[0].peak_bytes - 4 * 4 * self.WEIGHT

    def test_foreach_by_default_takes_a_copy_of_the_weights(self):
        assert self.over_states() == self.over_states(foreach=True)
        assert 0 <= self.over_states() - 4 * self.WEIGHT < 2048

    def test_one_by_one_takes_a_root_and_two_quotients(self):
        # The root, its quotient, and the quotient of the weight before, which Python still names.
        assert 0 <= self.over_states(foreach=False) - 3 * self.WEIGHT < 2048

    def test_fused_takes_nothing(self):
        assert 0 <= self.over_states(fused=True) <= 2048

    def test_step_counters_lie_on_the_host_unless_fused(self):
        counts = {
            name: sum(event.num_bytes == 4 for event in updated(torch.optim.AdamW, **options)[1])
            for name, options in {
                "foreach": {},
                "one by one": {"foreach": False},
                "fused": {"fused": True},
                "capturable": {"capturable": True},
            }.items()
        }
        assert counts["foreach"] == counts["one by one"] == 0
        assert counts["fused"] >= 4
        assert counts["capturable"] >= 4

    @pytest.mark.parametrize(
        ("options", "momentum"), [({}, 0.9), ({"foreach": False}, 0.9), ({"fused": True}, 0.9)]
    )
    def test_sgd_keeps_one_moment(self, options, momentum):
        peak = updated(torch.optim.SGD, momentum=momentum, **options)[0].peak_bytes
        assert 0 <= peak - 3 * 4 * self.WEIGHT <= 2048


class TestClipping:
    def test_is_by_foreach_unless_refused(self):
        operators = [
            {event.operator.split(".")[1] for event in updated(torch.optim.SGD, clip=clip)[1]}
            for clip in ({}, {"foreach": False})
        ]
        assert "_foreach_norm" in operators[0]
        assert "_foreach_norm" not in operators[1]
        assert "linalg_vector_norm" in operators[1]


class TestLogits:
    """A head alone: what a language model needs for the logits of one micro-batch."""

    def large_blocks(self, samples, length, num_values, *, in_fp32):
        """Every block of at least a byte a logit, and the peak, in bytes a logit."""
        num_logits = samples * length * num_values

        def run(_):
            head = nn.Linear(8, num_values, bias=False, device=GPU)
            targets_N = torch.zeros(samples * length, dtype=torch.int64, device=GPU)
            with torch.autocast("cpu", torch.bfloat16):
                logits_NV = head(numbers(samples * length, 8))
                logits_NV = logits_NV.float() if in_fp32 else logits_NV
                loss = functional.cross_entropy(logits_NV, targets_N)
                del logits_NV
            loss.backward()
            return head

        events = record(run, A100)
        large = [e for e in events if e.num_bytes >= num_logits]
        blocks = [(e.operator.split(".")[1], e.num_bytes / num_logits) for e in large]
        return blocks, trace_of(events).peak_bytes / num_logits

    def test_are_copied_in_fp32_by_the_loss(self):
        # GPT-2 at B 32, T 1024: 32 x 1024 x 50,304 x 4 B = 6.14 GiB for that copy (nanoGPT #88).
        blocks, peak = self.large_blocks(32, 1024, 50_304, in_fp32=False)
        assert blocks == [
            ("mm", 2),
            ("_log_softmax", 2),
            ("_to_copy", 4),
            # Backward: for the copy, in bf16 again, for the logits.
            ("nll_loss_backward", 4),
            ("_to_copy", 2),
            ("_log_softmax_backward_data", 2),
        ]
        # Probabilities, their copy, and the gradient of that.
        assert peak == pytest.approx(2 + 4 + 4, rel=0.01)

    def test_in_fp32_from_the_start_take_more(self):
        # B 32, T 2048, V 65,536: 8 GiB in bf16 (nanochat #443), and six times that at the peak.
        blocks, peak = self.large_blocks(32, 2048, 65_536, in_fp32=True)
        assert 32 * 2048 * 65_536 * blocks[0][1] == 8 * 2**30
        assert blocks == [
            ("mm", 2),
            ("_to_copy", 4),
            ("_log_softmax", 4),
            ("nll_loss_backward", 4),
            ("_log_softmax_backward_data", 4),
            ("_to_copy", 2),
        ]
        # Probabilities, their gradient, and that of the logits.
        assert peak == pytest.approx(4 + 4 + 4, rel=0.01)


def test_inference_mode_chooses_alike():
    def run(mode):
        def traced(_):
            x = numbers(2, 4, 128, 64, dtype=torch.bfloat16)
            norm = nn.RMSNorm(64, device=GPU, dtype=torch.bfloat16)
            with mode(), torch.autocast("cpu", torch.bfloat16):
                out = functional.scaled_dot_product_attention(norm(x), x, x, is_causal=True)
                return functional.linear(out, out[0, 0]).softmax(-1)

        return appeared(traced)

    found = run(torch.inference_mode)
    assert found == run(torch.no_grad)
    names = {name for name, _ in found}
    assert {"_fused_rms_norm", "_scaled_dot_product_flash_attention"} <= names


class TestTwoPlaces:
    def test_what_stays_on_the_host_is_not_booked(self):
        def run(_):
            host = torch.empty(1000, 1000)
            moved = host[:2].to(GPU)
            return host.sum(), moved, moved.to("cpu")

        assert appeared(run) == [("_to_copy", 8_000)]

    def test_a_module_moved_is_booked_once(self):
        def run(_):
            return nn.Linear(8, 4).to(GPU)

        assert sorted(appeared(run)) == [("_to_copy", 16), ("_to_copy", 128)]


@pytest.fixture(scope="module")
def language_model():
    return LanguageModel(held_out_tokens=2_000, evaluation_context=64)


SMALL = {"width": 64, "depth": 2, "heads": 2, "sequence_length": 64, "batch_size": 4}


class TestLanguageModel:
    @pytest.mark.parametrize("precision", list(Precision))
    @pytest.mark.parametrize("checkpointed", [False, True])
    def test_every_precision(self, language_model, precision, checkpointed):
        params = {
            **SMALL,
            "micro_batch_size": 2,
            "dropout": 0.1,
            "precision": precision.value,
            "activation_checkpointing": checkpointed,
        }
        traced = trace(language_model, params, target=A100)
        assert traced.parts[Part.WORKSPACE] == 2 * WORKSPACE
        assert sum(traced.parts.values()) == traced.peak_bytes
        half = precision is Precision.BF16
        # Embedding and head of 256 x 64, the last norm, and in each block: two norms, the maps
        # from 64 to 192, 64, 256, and back to 64, with their biases.
        block = 4 * 64 + 64 * 192 + 192 + 64 * 64 + 64 + 2 * 64 * 256 + 256 + 64
        weights = (2 * 256 * 64 + 2 * 64 + 2 * block) * (2 if half else 4)
        assert traced.parts[Part.PARAMETERS] == weights
        assert traced.parts.get(Part.GRADIENTS, 0) <= weights
        assert traced.parts[Part.OPTIMIZER] == 2 * weights

    def test_the_same_events_each_time(self, language_model):
        params = {**SMALL, "precision": "bf16-mixed", "dropout": 0.1}
        first, second = (trace(language_model, params, target=A100) for _ in range(2))
        assert first == second

    def test_inputs_count_once_they_are_moved(self, language_model):
        booked = {
            name: trace(language_model, {**SMALL, "micro_batch_size": 1}, target=target)
            for name, target in {"gpu": A100, "cpu": None}.items()
        }
        # One micro-batch of inputs and targets is there at a time; on a CPU all four are.
        moved = [
            event.num_bytes
            for event in booked["gpu"].events
            if event.operator == "aten._to_copy.default" and event.num_bytes == 64 * 8
        ]
        assert len(moved) == 2 * 2 * 2  # inputs and targets, two micro-batches, two steps
        assert booked["cpu"].parts[Part.INPUTS] == 4 * 2 * 64 * 8
        assert Part.INPUTS not in booked["gpu"].parts

    def test_a_loss_scale_lies_on_the_device(self, language_model):
        booked = {
            precision: Counter(
                (event.operator.split(".")[1], event.num_bytes)
                for event in trace(
                    language_model, {**SMALL, "precision": precision}, target=A100
                ).events
                if event.num_bytes > 0
            )
            for precision in ("16-mixed", "bf16-mixed")
        }
        # The scale and how long it has held; in each step whether a gradient overflowed.
        scaled = booked["16-mixed"] - booked["bf16-mixed"]
        assert scaled["full", 4] == 2 + 2
        # Nothing else than numbers: gradients are unscaled where they lie.
        assert all(num_bytes <= 8 for _, num_bytes in scaled)
        assert not booked["bf16-mixed"] - booked["16-mixed"]

    def test_attention_scores_are_never_there(self, language_model):
        params = {**SMALL, "heads": 4, "sequence_length": 512, "batch_size": 1, "dropout": 0.1}
        scores = 4 * 512 * 512 * 4
        on_gpu = trace(language_model, params, target=A100)
        on_cpu = trace(language_model, params)
        assert max(event.num_bytes for event in on_cpu.events) == scores
        assert all(abs(event.num_bytes) != scores for event in on_gpu.events)

    def test_an_older_chip_keeps_scores_in_bf16(self, language_model):
        params = {**SMALL, "sequence_length": 512, "batch_size": 1, "precision": "bf16-true"}
        older, newer = (
            trace(language_model, params, target=Cuda(architecture=architecture)).peak_bytes
            for architecture in ((7, 5), (8, 0))
        )
        assert older > newer + 2 * 512 * 512 * 4
