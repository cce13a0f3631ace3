"""Random configurations to measure: every kind of model, precision, optimizer, checkpointed or not.

The peak of each is drawn about evenly on a log scale, up to what a few seconds on one core allow.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.objectives_measured import (
    convolutional_net,
    multilayer_perceptron,
    transformer_encoder,
)
from objectives.language_model import LanguageModel
from search.memory.trace import trace
from search.objective import Objective, Split
from search.optimizers import Implementation, Optimizer, refusal
from search.results import Params, ParamValue
from search.training_params import Precision

OBJECTIVES: Mapping[str, Callable[[], Objective]] = {
    "language model": partial(LanguageModel, held_out_tokens=8_192),  # more takes time alone
    "transformer encoder": transformer_encoder,
    "convolutional net": convolutional_net,
    "multilayer perceptron": multilayer_perceptron,
}
NUM_STEPS = 2
"""That each is trained for: the optimizer's state appears in the first, the steady peak follows."""

_LEAST_BYTES, _MOST_BYTES = 100 * 10**6, 1_600 * 10**6
_SPACES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "language model": {
        "width": (32, 64, 128, 192, 256, 384, 512),
        "depth": (1, 2, 4),
        "heads": (2, 4, 8),
        "dropout": (0.0, 0.0, 0.1),
        "sequence_length": (64, 96, 128, 256, 384, 512),
    },
    "transformer encoder": {
        "width": (16, 32, 64, 128, 256),
        "depth": (1, 2, 4),
        "heads": (2, 4, 8),
        "dropout": (0.0, 0.1, 0.2),
        "sequence_length": (32, 64, 128, 256),
    },
    "convolutional net": {
        "width": (4, 8, 12, 16, 24, 32),
        "depth": (2, 3, 4),
        "image_size": (16, 24, 32, 48),
    },
    "multilayer perceptron": {
        "width": (32, 64, 128, 256, 512, 1024),
        "depth": (2, 3, 4),
        "num_features": (32, 64, 128),
        "dropout": (0.0, 0.1),
    },
}
_OPTIMIZERS = (Optimizer.ADAMW, Optimizer.ADAM, Optimizer.SGD)
_PRECISIONS = (Precision.FP32, Precision.BF16_MIXED, Precision.FP16_MIXED)
_FLOPS_PER_SECOND = {
    Precision.FP32: 1.5e10,
    Precision.BF16_MIXED: 2.5e9,
    Precision.FP16_MIXED: 2e9,
}
"""Of one core with AVX2, roughly: only what would take long hangs on it."""
_MOST_SECONDS = 5.0
_LEAST_SAMPLES = 2
_NUM_NARROW = 2
"""Widths in 16-bit precisions, slow on AVX2: wide nets would not reach 100 MB in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One of the configurations: `kind` names its objective."""

    kind: str
    params: Params

    @property
    def name(self) -> str:
        """All its dimensions in words."""
        training = {"precision", "optimizer", "activation_checkpointing"}
        sizes = [f"{name} {value}" for name, value in self.params.items() if name not in training]
        choice = self.params["activation_checkpointing"]
        checkpointed = "checkpointed" if choice else "plain"
        checkpointed += f" {choice}" if isinstance(choice, str) else ""
        chosen = [str(self.params["precision"]), str(self.params["optimizer"]), checkpointed]
        return ", ".join([self.kind, *chosen, *sizes]).replace("_", " ")


def configurations(count: int, seed: int) -> Iterator[Configuration]:
    """`count` of all the combinations, in random order, each with random sizes.

    Args:
        count: how many; beyond the 72 combinations, each comes again with other sizes.
        seed: of the random numbers.
    """
    generator = random.Random(seed)  # noqa: S311 - no secret
    combinations = list(itertools.product(OBJECTIVES, _PRECISIONS, _OPTIMIZERS, (False, True)))
    generator.shuffle(combinations)
    for combination in itertools.islice(itertools.cycle(combinations), count):
        yield _sized(*combination, generator)


def levers() -> Iterator[Configuration]:
    """One configuration for each value of each dimension that changes how a step uses memory.

    Of a language model of some 150 MB, most of them parameters and states, or activations where
    these are what changes.
    """
    plain: dict[str, ParamValue] = {
        "precision": Precision.FP32.value,
        "optimizer": Optimizer.ADAMW.value,
        "activation_checkpointing": False,
        "heads": 8,
        "depth": 4,
    }
    wide = {"width": 384, "sequence_length": 32, "batch_size": 4}
    long = {"width": 64, "sequence_length": 128, "batch_size": 64}
    choices: list[dict[str, ParamValue]] = [
        {"optimizer": optimizer.value, "optimizer_implementation": implementation.value}
        for optimizer in Optimizer
        for implementation in Implementation
        if refusal(optimizer, implementation) is None
    ]
    choices += [
        {"activation_checkpointing": choice, **long}
        for choice in (False, True, "every-2", "every-3", "every-4", "attention")
    ]
    choices += [
        {"precision": precision.value} for precision in Precision if precision.value != "tf32"
    ]
    choices += [
        {"micro_batch_size": 2},
        {"zero_grad_to_none": False},
        {"clip_norm": 0.0},
        {"clip_norm": 0.0, "step_in_backward": True},
        {"clip_norm": 0.0, "step_in_backward": True, "zero_grad_to_none": False},
    ]
    for choice in choices:
        yield Configuration(kind="language model", params={**plain, **wide, **choice})


def _sized(
    kind: str,
    precision: Precision,
    optimizer: Optimizer,
    checkpointed: bool,  # noqa: FBT001 - one of a combination
    generator: random.Random,
) -> Configuration:
    """Sizes that are drawn until one is fast and large enough."""
    objective = OBJECTIVES[kind]()
    chosen = {
        "precision": precision.value,
        "optimizer": optimizer.value,
        "activation_checkpointing": checkpointed,
    }
    most_flops = _MOST_SECONDS * _FLOPS_PER_SECOND[precision]
    while True:
        drawn = {name: generator.choice(values) for name, values in _SPACES[kind].items()}
        if precision is not Precision.FP32:
            drawn["width"] = generator.choice(_SPACES[kind]["width"][:_NUM_NARROW])
        params = {**chosen, **drawn}
        most_samples = int(most_flops / _flops_per_sample(objective, params))
        highest_bytes = _peak_bytes(objective, {**params, "batch_size": max(2, most_samples)})
        if most_samples < _LEAST_SAMPLES or highest_bytes < _LEAST_BYTES:
            continue
        highest = math.log(min(highest_bytes, _MOST_BYTES))
        wanted_bytes = math.exp(generator.uniform(math.log(_LEAST_BYTES), highest))
        params["batch_size"] = max(
            _LEAST_SAMPLES, round(most_samples * wanted_bytes / highest_bytes)
        )
        return Configuration(kind=kind, params=params)


def _peak_bytes(objective: Objective, params: Params) -> int:
    return trace(objective, params, num_steps=1).peak_bytes


def _flops_per_sample(objective: Objective, params: Params) -> float:
    """Of all steps: forward, backward, forward again where checkpointed.

    Source: a backward pass takes two products where the forward pass takes one.
    """
    two = {**params, "batch_size": 2, "activation_checkpointing": False}
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        objective.loss(objective.model(two), objective.batch(two, Split.TRAIN))
    passes = 4 if params["activation_checkpointing"] else 3
    return counter.get_total_flops() / 2 * passes * NUM_STEPS
