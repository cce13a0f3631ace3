"""The dimensions of compression and of distillation, and the metrics that come with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from search.metric import Goal, Metric
from search.results import Params


class Quantization(StrEnum):
    """What the weights of linear layers are kept in; `int8-dynamic` computes in int8 too."""

    NONE = "none"
    INT8_DYNAMIC = "int8-dynamic"
    INT8_WEIGHT_ONLY = "int8-weight-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionParams:
    """What is done to a trained model, in this order.

    `pruned_channels` is the share of each layer's hidden units, or channels, that are taken out,
    `pruned_weights` the share of each layer's weights that become 0.
    """

    pruned_channels: float = 0.0
    pruned_weights: float = 0.0
    quantization: Quantization = Quantization.NONE

    def __post_init__(self) -> None:
        """Raises ValueError on shares that leave nothing."""
        for name in ("pruned_channels", "pruned_weights"):
            if not 0 <= getattr(self, name) < 1:
                msg = f"{name} must be from 0 to below 1"
                raise ValueError(msg)

    @classmethod
    def of(cls, params: Params) -> Self:
        """The dimensions of compression among a configuration's values."""
        chosen = _own(cls, params)
        return cls(**{**chosen, "quantization": Quantization(str(chosen["quantization"]))})


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationParams:
    """How much a model learns from its teacher.

    `distillation_weight` is the share of the loss that compares it with the teacher: at 0 there is
    none. `distillation_temperature` softens what both of them say: above 1, more is learned from
    the unlikely.
    """

    distillation_weight: float = 0.5
    distillation_temperature: float = 2.0

    def __post_init__(self) -> None:
        """Raises ValueError on values without a meaning."""
        if not 0 <= self.distillation_weight <= 1:
            msg = "distillation_weight must be from 0 to 1"
            raise ValueError(msg)
        if self.distillation_temperature <= 0:
            msg = "distillation_temperature must be above 0"
            raise ValueError(msg)

    @classmethod
    def of(cls, params: Params) -> Self:
        """The dimensions of distillation among a configuration's values."""
        return cls(**_own(cls, params))


def of_one_sample(params: Params) -> Params:
    """A configuration whose batches are one sample each."""
    return {**params, "batch_size": 1, "micro_batch_size": 1}


def _own(group: type[CompressionParams | DistillationParams], params: Params) -> dict[str, Any]:
    """A group's values, with the defaults of those that are left out."""
    names = [field.name for field in fields(group)]
    return {**asdict(group()), **{name: params[name] for name in names if name in params}}


DIMENSIONS = tuple(
    field.name for group in (CompressionParams, DistillationParams) for field in fields(group)
)
"""The names of all of them."""
MEMORY_NEUTRAL = frozenset(DIMENSIONS) - {"distillation_weight"}
"""Those that change no tensor's size in training: what is served is predicted uncompressed."""
MEMORY_SWITCHES = frozenset({"distillation_weight"})
"""At 0 there is no teacher."""

MODEL_SIZE = Metric(name="model_size", goal=Goal.MIN, unit="B", section="serving")
SERVING_MEMORY = Metric(name="serving_memory", goal=Goal.MIN, unit="B", section="serving")
LATENCY = Metric(name="latency", goal=Goal.MIN, unit="s", section="serving")
SERVING_THROUGHPUT = Metric(
    name="serving_throughput", goal=Goal.MAX, unit="tokens/s", section="serving"
)
SERVING_METRICS = (MODEL_SIZE, SERVING_MEMORY, LATENCY, SERVING_THROUGHPUT)
"""What is measured of the compressed model, as it is on disk and as it serves."""


def after(name: str) -> str:
    """What the metric of that name is called where the compressed model is judged by it."""
    return f"{name}_after"


def compression_metrics(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """What a trial with compression tells besides, for an objective with these metrics."""
    judged = tuple(replace(metric, name=after(metric.name)) for metric in metrics)
    return (*judged, *SERVING_METRICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """A trained model to learn from: its configuration, and the file of its weights."""

    name: str
    params: Params
    weights: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a sweep with compression does besides training, the same for all its trials.

    `serving_batch_size` is the number of samples that are served at once when that is measured.
    `quantizes` says whether any of them does.
    """

    serving_batch_size: int
    quantizes: bool = False
    teacher: Teacher | None = None


def teacher_of(deployment: Deployment | None) -> Teacher | None:
    """Whom trials learn from; None where nobody teaches."""
    return None if deployment is None else deployment.teacher
