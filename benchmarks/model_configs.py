"""The public decoder models that measurements name, built with `transformers` from their sizes.

Weights are never read: a model's memory follows from its sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a decoder-only model, named as in the published rows.

    `head_dim` is hidden / heads where 0; `sliding_window` 0 where every layer sees all positions.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied_embeddings: bool = False
    head_dim: int = 0
    sliding_window: int = 0


_LLAMA_7B = Sizes(hidden=4096, layers=32, heads=32, kv_heads=32, ffn=11008, vocab=32000)
_LLAMA_8B = replace(_LLAMA_7B, kv_heads=8, ffn=14336, vocab=128256)
_MISTRAL_7B = replace(_LLAMA_8B, vocab=32000)
_QWEN_05B = Sizes(
    hidden=896, layers=24, heads=14, kv_heads=2, ffn=4864, vocab=151936, tied_embeddings=True
)
_QWEN_15B = replace(_QWEN_05B, hidden=1536, layers=28, heads=12, ffn=8960)
_QWEN_7B = Sizes(hidden=3584, layers=28, heads=28, kv_heads=4, ffn=18944, vocab=152064)
_GEMMA_2B = Sizes(
    hidden=2048, layers=18, heads=8, kv_heads=1, ffn=16384, vocab=256000, head_dim=256,
    tied_embeddings=True,
)  # fmt: skip
_GEMMA2_2B = replace(_GEMMA_2B, hidden=2304, layers=26, kv_heads=4, ffn=9216, sliding_window=4096)

PUBLISHED_SIZES: Mapping[str, Sizes] = {
    "Llama-2-7b": _LLAMA_7B,
    "Llama-2-13b": replace(_LLAMA_7B, hidden=5120, layers=40, heads=40, kv_heads=40, ffn=13824),
    "Llama-3-8B": _LLAMA_8B,
    "Llama-3.1-8B": _LLAMA_8B,
    "Llama-3.2-1B": replace(_LLAMA_8B, hidden=2048, layers=16, ffn=8192, tied_embeddings=True),
    "Llama-3.2-3B": replace(
        _LLAMA_8B, hidden=3072, layers=28, heads=24, ffn=8192, tied_embeddings=True
    ),
    "TinyLlama-1.1B": replace(_LLAMA_7B, hidden=2048, layers=22, kv_heads=4, ffn=5632),
    "Mistral-7B-v0.1": replace(_MISTRAL_7B, sliding_window=4096),
    "Mistral-7B-v0.2": _MISTRAL_7B,
    "Mistral-7B-v0.3": replace(_MISTRAL_7B, vocab=32768),
    "Qwen2-0.5B": _QWEN_05B,
    "Qwen2-1.5B": _QWEN_15B,
    "Qwen2-7B": _QWEN_7B,
    "Qwen2.5-0.5B": _QWEN_05B,
    "Qwen2.5-1.5B": _QWEN_15B,
    "Qwen2.5-3B": replace(_QWEN_05B, hidden=2048, layers=36, heads=16, ffn=11008),
    "Qwen2.5-7B": _QWEN_7B,
    "gemma-2b": _GEMMA_2B,
    "gemma-7b": replace(_GEMMA_2B, hidden=3072, layers=28, heads=16, kv_heads=16, ffn=24576),
    "gemma-2-2b": _GEMMA2_2B,
    "gemma-2-9b": replace(_GEMMA2_2B, hidden=3584, layers=42, heads=16, kv_heads=8, ffn=14336),
}
"""Source: each model's `config.json` as published with its weights."""

_CONFIG_CLASSES = {
    "tinyllama": "LlamaConfig",
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "gemma-2-": "Gemma2Config",
    "gemma": "GemmaConfig",
}
"""By how a model's name begins, the longer beginning first; all a family fixes is its default."""


def sizes_of(model: str, stated: Mapping[str, Any]) -> Sizes | None:
    """The sizes a row states, what it leaves open as published; None where that is not enough."""
    names = {field.name for field in fields(Sizes)}
    known = {name: value for name, value in stated.items() if name in names}
    published = [name for name in PUBLISHED_SIZES if model.lower().startswith(name.lower())]
    if published:
        return replace(PUBLISHED_SIZES[max(published, key=len)], **known)
    try:
        return Sizes(**known)
    except TypeError:
        return None


def config_class(model: str) -> str | None:
    """The name of the `transformers` class for a model, None for a family not known here."""
    name = model.lower()
    return next((found for start, found in _CONFIG_CLASSES.items() if name.startswith(start)), None)


def config_of(model: str, sizes: Sizes) -> PretrainedConfig:
    """The model's configuration; whatever does not change its memory has the family's default."""
    import transformers

    windowed = config_class(model) == "MistralConfig" or sizes.sliding_window
    windows = {"sliding_window": sizes.sliding_window or None} if windowed else {}
    return getattr(transformers, str(config_class(model)))(
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        intermediate_size=sizes.ffn,
        vocab_size=sizes.vocab,
        head_dim=sizes.head_dim or sizes.hidden // sizes.heads,
        tie_word_embeddings=sizes.tied_embeddings,
        **windows,
    )
