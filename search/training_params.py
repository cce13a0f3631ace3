"""The dimensions every objective shares: how one optimizer step is taken.

Left out: the step itself, see `search.training`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self

from search.checkpointing import Checkpointing
from search.compression import params as compression
from search.errors import InputError
from search.optimizers import Implementation, Optimizer, offload_refusal, refusal
from search.parallel import Sharding, refusals

if TYPE_CHECKING:
    from search.results import Params, ParamValue


class Precision(StrEnum):
    """What numbers a step computes with, under the names Lightning gave them."""

    FP32 = "32-true"
    TF32 = "tf32"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "16-mixed"
    BF16 = "bf16-true"

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        return cls.FP32 if value == "fp32" else None


_MOST_PREFETCHED = 1_000
_MOST_WORKERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingParams:
    """The dimensions every objective shares: how one optimizer step is taken.

    `micro_batch_size` is the number of samples of one forward pass, `equal` for no accumulation,
    or `auto` for the largest divisor of `batch_size` that is predicted to fit.
    `warmup_fraction` is the share of the trial's tokens with a rising learning rate.
    `clip_norm` 0 leaves gradients as they are. `momentum` is used by `sgd` alone.
    `prefetch` micro-batches are made by a thread while the step before them still runs.
    `workers` processes make them. Made ahead either way, they lie in page-locked memory beside a
    GPU with `pin_memory`.
    `activation_checkpointing` is for every block, every second to fourth, or attention alone.
    `optimizer_offload` keeps the state of the optimizer on the host of a GPU, and updates there.
    `step_in_backward` updates each parameter as soon as its gradient is there, and drops that.
    `world_size` processes share every batch, a device each; `sharding` is what each keeps of the
    model, and `gradient_as_bucket_view` whether gradients lie in the buckets they are sent in.
    """

    learning_rate: float = 1e-3
    batch_size: int = 32
    micro_batch_size: int | Literal["equal", "auto"] = "equal"
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.ADAMW
    optimizer_implementation: Implementation = Implementation.AUTO
    optimizer_offload: bool = False
    step_in_backward: bool = False
    zero_grad_to_none: bool = True
    weight_decay: float = 0.01
    momentum: float = 0.9
    warmup_fraction: float = 0.05
    clip_norm: float = 1.0
    activation_checkpointing: Checkpointing = False
    prefetch: int = 0
    workers: int = 0
    pin_memory: bool = True
    world_size: int = 1
    sharding: Sharding = Sharding.NONE
    gradient_as_bucket_view: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError on a value no step can be taken with."""
        for name in ("learning_rate", "batch_size"):
            _require(getattr(self, name) > 0, f"{name} must be above 0")
        for name in ("weight_decay", "clip_norm", "prefetch", "workers"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative")
        for name, most in (("prefetch", _MOST_PREFETCHED), ("workers", _MOST_WORKERS)):
            _require(getattr(self, name) <= most, f"{name} must be at most {most}")
        for name in ("momentum", "warmup_fraction"):
            _require(0 <= getattr(self, name) < 1, f"{name} must be from 0 to below 1")
        refused_together = next(refusals(self), None)
        _require(refused_together is None, str(refused_together))
        if isinstance(self.micro_batch_size, int):
            _require(self.micro_batch_size > 0, "micro_batch_size must be above 0")
            share = "" if self.world_size == 1 else f" over world_size {self.world_size}"
            _require(
                self.samples_per_rank % self.micro_batch_size == 0,
                f"micro_batch_size {self.micro_batch_size} does not divide "
                f"batch_size {self.batch_size}{share}",
            )
        else:
            _require(
                self.micro_batch_size in ("equal", "auto"),
                "micro_batch_size must be a number, equal or auto",
            )
        refused = refusal(self.optimizer, self.optimizer_implementation)
        _require(refused is None, str(refused))
        if self.optimizer_offload:
            self._check_optimizer_offload()
        if self.step_in_backward:
            self._check_step_in_backward()

    def _check_optimizer_offload(self) -> None:
        """Gradients are copied to the host as they come, before anybody can change them."""
        refused = offload_refusal(self.optimizer)
        _require(refused is None, str(refused))
        _require(
            self.clip_norm == 0,
            "optimizer_offload copies gradients before they can be clipped (set clip_norm to 0)",
        )
        _require(
            self.precision is not Precision.FP16_MIXED,
            "optimizer_offload copies gradients before they can be unscaled "
            "(take a precision other than 16-mixed)",
        )
        _require(
            not self.step_in_backward and self.zero_grad_to_none,
            "optimizer_offload goes neither with step_in_backward nor with zero_grad_to_none false",
        )

    def _check_step_in_backward(self) -> None:
        """One gradient at a time is known: nothing can be done with all of them together."""
        _require(
            self.clip_norm == 0,
            "step_in_backward never sees all gradients at once, so it cannot clip them "
            "(set clip_norm to 0)",
        )
        _require(
            self.precision is not Precision.FP16_MIXED,
            "step_in_backward cannot leave a step out when a gradient overflows "
            "(take a precision other than 16-mixed)",
        )
        _require(
            self.micro_batch_size in ("equal", self.batch_size),
            "step_in_backward adds up no gradients (set micro_batch_size to equal)",
        )

    @property
    def samples_per_rank(self) -> int:
        """Samples of one optimizer step that one process computes."""
        return self.batch_size // self.world_size

    @classmethod
    def of(cls, params: Params) -> Self:
        """The training dimensions among a configuration's values."""
        known = {field.name for field in fields(cls)}
        chosen: dict[str, Any] = {key: value for key, value in params.items() if key in known}
        for key, kind in _ENUMS.items():
            if key in chosen:
                chosen[key] = kind(chosen[key])
        return cls(**chosen)


_ENUMS: Mapping[str, type[StrEnum]] = {
    "precision": Precision,
    "optimizer": Optimizer,
    "optimizer_implementation": Implementation,
    "sharding": Sharding,
}


def _require(condition: bool, message: str) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError(message)


MEMORY_NEUTRAL = (
    frozenset({"learning_rate", "warmup_fraction", "seed"}) | compression.MEMORY_NEUTRAL
)
"""Training dimensions that change no tensor's size, and those of what comes after."""
MEMORY_SWITCHES = frozenset({"weight_decay", "momentum", "clip_norm"}) | compression.MEMORY_SWITCHES
"""Change which tensors there are when they turn 0, and nothing otherwise."""


def memory_key(params: Params, neutral: Collection[str] = ()) -> dict[str, ParamValue]:
    """What decides the memory of a configuration: two with equal keys need the same.

    `neutral` are dimensions of the objective that change no tensor's size.
    """
    return {
        name: bool(value) if name in MEMORY_SWITCHES else value
        for name, value in params.items()
        if name not in MEMORY_NEUTRAL and name not in neutral
    }


def micro_batch_size(params: Params) -> int:
    """Samples in one forward pass, `equal` resolved.

    Raises:
        InputError: on `auto`, which only a memory prediction can resolve.
    """
    training = TrainingParams.of(params)
    if training.micro_batch_size == "equal":
        return training.samples_per_rank
    if training.micro_batch_size == "auto":
        msg = "micro_batch_size: 'auto' must be resolved before a model is built"
        raise InputError(msg)
    return training.micro_batch_size
