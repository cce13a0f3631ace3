"""The dimensions of models of transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from objectives.adapters import ALL_LINEAR
from objectives.dimensions import require_at_least, require_below
from objectives.vocabulary import NUM_BYTES
from search.objective import MEMORY_NEUTRAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersParams:
    """The dimensions of any model of transformers.

    `vocabulary` is the number of sub-word pieces learned from the texts where there is no folder:
    256 are the bytes, the default. `depth` and `dropout` are the config's own where they are None.
    With `lora_rank` above 0 the weights are frozen, and adapters of that rank are trained.
    """

    sequence_length: int = 128
    vocabulary: int | None = None
    depth: int | None = None
    dropout: float | None = None
    attention: Literal["sdpa", "eager"] = "sdpa"
    bucketing: int = 1
    lora_rank: int = 0
    lora_alpha: float = field(default=16.0, metadata=MEMORY_NEUTRAL)
    lora_dropout: float = 0.0
    lora_target: str = ALL_LINEAR

    def __post_init__(self) -> None:
        """Raises ValueError on dimensions that make no model."""
        require_at_least(1, self, "sequence_length", "bucketing")
        require_at_least(0, self, "lora_rank")
        require_below(1, self, "lora_dropout")
        if self.vocabulary is not None:
            require_at_least(NUM_BYTES, self, "vocabulary", why="the bytes")
        if self.depth is not None:
            require_at_least(1, self, "depth")
        if self.dropout is not None:
            require_below(1, self, "dropout")
        if self.lora_alpha <= 0:
            msg = f"lora_alpha must be above 0, found {self.lora_alpha}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalParams(TransformersParams):
    """Besides, what a sample is.

    `windows` are any stretches of all documents one after another; `packed` windows hold whole
    documents, which attention keeps apart; `padded` ones hold one document each.
    """

    samples: Literal["windows", "packed", "padded"] = "windows"
