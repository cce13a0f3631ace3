"""The sizes of public models: each must have as many parameters as its model card counts."""

import pytest
import torch

from benchmarks.model_configs import PUBLISHED_SIZES, Sizes, config_class, config_of, sizes_of

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[benchmarks]'"
)

NUM_PARAMS = {  # Source: the safetensors index of each model's published weights.
    "Llama-2-7b": 6_738_415_616,
    "Llama-2-13b": 13_015_864_320,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "TinyLlama-1.1B": 1_100_048_384,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-7B-v0.2": 7_241_732_096,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Qwen2-0.5B": 494_032_768,
    "Qwen2-1.5B": 1_543_714_304,
    "Qwen2-7B": 7_615_616_512,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
}


@pytest.mark.parametrize("name", PUBLISHED_SIZES)
def test_a_model_has_as_many_parameters_as_published(name):
    with torch.device("meta"):
        config = config_of(name, PUBLISHED_SIZES[name])
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(param.numel() for param in model.parameters()) == NUM_PARAMS[name]


def test_what_a_row_states_goes_before_what_is_published():
    sizes = sizes_of("Llama-3.2-1B-Instruct", {"layers": 3, "qkv_bias": False})
    assert sizes is not None
    assert (sizes.layers, sizes.hidden) == (3, 2048)


def test_the_longest_name_decides():
    assert sizes_of("gemma-2-9b-it", {}) == PUBLISHED_SIZES["gemma-2-9b"]
    assert config_class("gemma-2-9b-it") == "Gemma2Config"
    assert config_class("gemma-2b") == "GemmaConfig"


def test_an_unknown_model_needs_all_its_sizes():
    stated = {"hidden": 8, "layers": 1, "heads": 2, "kv_heads": 1, "ffn": 16, "vocab": 32}
    assert sizes_of("Llama-of-mine", stated) == Sizes(**stated)
    assert sizes_of("Llama-of-mine", {"hidden": 8}) is None
    assert config_class("mamba-130m") is None
