"""The script that measured `transformers` models, on models of a few kilobytes."""

import dataclasses
import functools

import pytest
import torch

from benchmarks import transformers_step
from benchmarks.model_configs import Sizes
from benchmarks.transformers_step import Adapter, Setting, measure
from search.memory.allocator import simulate
from search.memory.cuda import Cuda
from search.memory.trace import record

for package in ("transformers", "peft"):
    pytest.importorskip(
        package, reason=f"{package} is not installed: pip install -e '.[benchmarks]'"
    )

SIZES = Sizes(hidden=64, layers=1, heads=4, kv_heads=2, ffn=128, vocab=256, tied_embeddings=True)
BASE = Setting(
    model="Llama-tiny",
    sizes=SIZES,
    attention="sdpa",
    dtype=torch.bfloat16,
    autocast=False,
    trains=True,
    micro_batch=2,
    sequence_length=32,
)
NUM_PARAMS = 256 * 64 + (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64
NUM_LORA = 4 * (2 * (64 + 64) + 2 * (64 + 32))  # rank 4, on q and o, on k and v
WORKSPACE_BYTES = 8_519_680


@functools.cache
def traced(**changes):
    """What there is at the end, its sizes by data type, and the events of the whole run."""
    target, kept, resets = Cuda(architecture=(8, 6)), [], []

    def run(recorder):
        def reset():  # blocks that are empty at this size are no part of what is recorded
            resets.append(sum(event.num_bytes != 0 for event in recorder.events()))

        setting = dataclasses.replace(BASE, **changes)
        kept.append(measure(setting, target.device, reset))

    events = record(run, target)
    return kept[0], events, resets


def peak(events):
    return simulate((event.storage, event.num_bytes) for event in events).peak_allocated_bytes


def training_peak(**changes):
    return peak(traced(**changes)[1])


def scalars(tensors):
    counts = {}
    for tensor in tensors:
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel()
    return counts


def moments(optimizer):
    return [one for state in optimizer.state.values() for one in state.values() if one.dim()]


def test_pure_training_keeps_weights_gradients_and_moments_in_bf16():
    (model, optimizer, _), _, _ = traced()
    params = list(model.parameters())
    assert scalars(params) == {torch.bfloat16: NUM_PARAMS}
    assert scalars(param.grad for param in params) == {torch.bfloat16: NUM_PARAMS}
    assert scalars(moments(optimizer)) == {torch.bfloat16: 2 * NUM_PARAMS}


def test_autocast_training_keeps_them_in_fp32():
    (model, optimizer, _), _, _ = traced(autocast=True)
    assert scalars(model.parameters()) == {torch.float32: NUM_PARAMS}
    assert scalars(moments(optimizer)) == {torch.float32: 2 * NUM_PARAMS}


def test_sgd_keeps_one_moment():
    (_, optimizer, _), _, _ = traced(optimizer="SGD")
    assert scalars(moments(optimizer)) == {torch.bfloat16: NUM_PARAMS}


def test_lora_trains_its_fp32_adapters_alone():
    adapter = Adapter(rank=4, projections=("q_proj", "k_proj", "v_proj", "o_proj"))
    (model, optimizer, _), _, _ = traced(adapter=adapter)
    trained = [param for param in model.parameters() if param.requires_grad]
    frozen = [param for param in model.parameters() if not param.requires_grad]
    assert scalars(trained) == {torch.float32: NUM_LORA}
    assert scalars(frozen) == {torch.bfloat16: NUM_PARAMS}
    assert scalars(moments(optimizer)) == {torch.float32: 2 * NUM_LORA}


def test_the_measured_steps_are_alike():
    _, events, resets = traced()
    assert len(resets) == 1 + transformers_step.NUM_MEASURED_STEPS
    _, first, second = resets
    sizes = [event.num_bytes for event in events]
    assert sizes[first:second] == sizes[second : second + second - first]


def test_inference_ends_with_weights_cache_and_logits():
    (out, _, ids), events, resets = traced(trains=False)
    assert len(resets) == 1
    assert out.logits.shape == (2, 32, 256)
    assert out.logits.dtype == torch.bfloat16
    # Worked by hand: bf16 weights; keys and values of 2 heads of 16; rotary frequencies of half a
    # head in fp32; int64 tokens; one workspace. Norms (128 B) and frequencies fill 512 B each.
    weights = 2 * (256 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 3 * 512
    cache, logits = 2 * (2 * 2 * 32 * 16 * 2), 2 * 32 * 256 * 2
    allocated = simulate((event.storage, event.num_bytes) for event in events).allocated_bytes
    assert ids.numel() * 8 == 512
    assert allocated == weights + cache + logits + 512 + 512 + WORKSPACE_BYTES


def test_checkpointing_needs_less():
    long = {"sequence_length": 512, "sizes": dataclasses.replace(SIZES, layers=2)}
    assert training_peak(**long, checkpointing=True) < training_peak(**long)


def test_attention_that_keeps_every_score_needs_more():
    # At T = 512 scores are 2 x 4 x 512 x 512, in bf16 and, for the softmax, in fp32: a layer keeps
    # at least 8 MiB of them; the flash kernel neither scores nor repeated keys nor a mask.
    long = {"sequence_length": 512}
    eager, fused, flash = (
        training_peak(**long, attention=attention) for attention in ("eager", "sdpa", "flash")
    )
    assert eager - fused > 8 * 2**20
    assert flash < fused


@pytest.mark.parametrize(
    ("model", "trains"),
    [("Mistral-7B-v0.1", True), ("Qwen2.5-1.5B", False), ("gemma-2b", False), ("gemma-2-2b", True)],
)
def test_every_family_runs(model, trains):
    sizes = dataclasses.replace(SIZES, layers=2, sliding_window=16)
    _, events, _ = traced(model=model, trains=trains, sizes=sizes)
    assert peak(events) > 2 * NUM_PARAMS


def test_fp32_models_run_with_eager_attention():
    (model, _, _), _, _ = traced(dtype=torch.float32, attention="eager")
    assert scalars(model.parameters()) == {torch.float32: NUM_PARAMS}


def test_nothing_of_the_run_stays_in_the_callers_settings():
    before = torch.get_default_dtype(), torch.backends.cuda.math_sdp_enabled()
    traced()
    assert (torch.get_default_dtype(), torch.backends.cuda.math_sdp_enabled()) == before
