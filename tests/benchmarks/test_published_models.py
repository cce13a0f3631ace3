"""Rows of published measurements: which are rebuilt, and what comes out."""

import pytest

from benchmarks import published_models
from benchmarks.published_models import covers, predicted_allocated_bytes, why_not
from search.errors import InputError
from search.memory.events import Event, Part, Phase

LAYER = {
    "id": "layer",
    "group": "torchtune-lora",
    "model": "LoRALinear(512,512,r=8) fp32",
    "statistic": "memory_allocated",
    "task": "init",
}
LLAMA = {
    "id": "llama",
    "group": "vramcalc",
    "model": "Llama-3.2-1B",
    "task": "train",
    "precision": "bf16-pure",
    "attention": "sdpa",
    "activation_checkpointing": "none",
    "adapter": None,
    "gpu": "RTX A6000 48GB",
    "micro_batch": 1,
    "seq_len": 2048,
    "parallelism": "single GPU",
    "compile": False,
    "optimizer": "AdamW(foreach=True), zero_grad(set_to_none=False)",
}
TINY = {
    "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256,
    "tied_embeddings": True,
}  # fmt: skip
LITGPT = {
    "id": "litgpt",
    "group": "litgpt-thunder",
    "model": "TinyLlama 1.1B",
    "model_dims": TINY,
    "micro_batch": 2,
    "seq_len": "32 (block size)",
    "precision": "bf16-true",
    "optimizer": "AdamW (script default)",
    "parallelism": "single",
    "compile": "eager",
    "gpu": "1x A100-SXM4-40GB",
}


@pytest.fixture
def installed():
    for package in ("transformers", "peft"):
        pytest.importorskip(
            package, reason=f"{package} is not installed: pip install -e '.[benchmarks]'"
        )


def test_a_layer_is_predicted_to_the_byte_published():
    # Published by torchtune: (512 x 512 + 2 x 8 x 512) x 4 bytes.
    assert predicted_allocated_bytes(LAYER) == 1_081_344
    assert predicted_allocated_bytes(LAYER | {"model": "LoRALinear(512,512,r=8) bf16"}) == 540_672


def test_litgpt_rows_are_rebuilt():
    # bf16 weights, gradients and two moments of 91,072 parameters, and two 8.125 MiB workspaces.
    num_params = 2 * 256 * 64 + 2 * (64 * 128 + 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
    predicted = predicted_allocated_bytes(LITGPT)
    assert predicted > 4 * 2 * num_params + 2 * 8_519_680
    assert predicted < 4 * 2 * num_params + 2 * 8_519_680 + 4 * 2**20


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "fp32+bf16-autocast"},
        {"precision": "fp32+fp16-autocast", "attention": "eager"},
        {"activation_checkpointing": "HF gradient_checkpointing, non-reentrant"},
        {"adapter": "LoRA r=16 on q,k,v,o; dropout 0; fp32 adapters"},
        {"adapter": "LoRA r=64 on q,v,gate,up,down; dropout 0.05; fp32 adapters"},
        {"optimizer": "SGD(momentum=0.9, foreach=True), zero_grad(set_to_none=False)"},
        {"task": "inference", "precision": "bf16", "optimizer": None},
        {"model": "gemma-2-2b", "attention": "flash"},
        {"model": "Qwen2.5-72B", "model_dims": TINY},
    ],
)
def test_settings_of_the_script_are_covered(changes):
    assert why_not(LLAMA | changes) is None


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group": "torchtitan"}, "rows of 'torchtitan' are not rebuilt here"),
        ({"parallelism": "FSDP 8"}, "several GPUs"),
        ({"compile": True}, "compiled"),
        ({"gpu": "a toaster"}, "'a toaster' is no GPU"),
        ({"model": "mamba-130m"}, "'mamba-130m' is of no family known here"),
        ({"model": "Llama-of-mine"}, "the sizes of 'Llama-of-mine' are not given"),
        ({"task": "rlhf"}, "the task 'rlhf' is not rebuilt"),
        ({"attention": "paged"}, "attention 'paged'"),
        ({"precision": "int4"}, "the precision 'int4' is not rebuilt"),
        ({"optimizer": "Adafactor"}, "the optimizer 'Adafactor' is not rebuilt"),
        ({"optimizer": None}, "the optimizer 'None' is not rebuilt"),
        ({"activation_checkpointing": "reentrant blocks"}, "reentrant blocks"),
        ({"adapter": "DoRA r=16"}, "the adapter 'DoRA r=16' is not rebuilt"),
        ({"adapter": "LoRA r=16 on q,x; dropout 0"}, "is not rebuilt"),
        ({"seq_len": "max 512 (variable)"}, "is not fixed"),
        ({"seq_len": "512, variable"}, "is not fixed"),
        ({"micro_batch": None}, "the micro-batch is not given"),
    ],
)
def test_what_cannot_be_rebuilt_says_why(changes, reason):
    row = LLAMA | changes
    assert not covers(row)
    assert reason in why_not(row)
    with pytest.raises(InputError, match="llama: "):
        predicted_allocated_bytes(row)


def test_each_stretch_between_resets_has_a_peak_of_its_own():
    # Blocks of 2, 3 and 1 KiB: the first stays, the second is gone before the only reset, and the
    # third is asked for after it.
    sizes = ((0, 2048), (1, 3072), (1, -3072), (2, 1024), (2, -1024))
    events = [
        Event(phase=Phase.STEP_1, storage=one, num_bytes=size, operator="", part=Part.TEMPORARIES)
        for one, size in sizes
    ]
    allocator, peaks = published_models._replayed(events, [3])
    assert peaks == [5120, 3072]
    assert allocator.statistics().allocated_bytes == 2048


def test_without_the_optional_packages_rows_say_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert why_not(LLAMA) == ("transformers is not installed (try: pip install -e '.[benchmarks]')")
    assert covers(LAYER)


@pytest.mark.usefixtures("installed")
@pytest.mark.campaign
@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({"task": "inference", "precision": "bf16", "optimizer": None}, 3.08e9),
        ({}, 17.51e9),
    ],
)
def test_published_rows_are_met(changes, measured):
    # Source: the validation table of vramcalc 0.1.2, printed to 0.01 GB.
    dims = {"hidden": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
    row = LLAMA | changes | {"model_dims": dims}
    assert predicted_allocated_bytes(row) == pytest.approx(measured, abs=0.005e9)
