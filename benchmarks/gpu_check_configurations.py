"""The 25 runs of `gpu_check.py`: precisions, optimizers, kinds of attention, four kinds of models.

Sizes are for a GPU of 8 GiB. On a larger one the batches grow with its memory, up to tenfold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch.nn.attention import SDPBackend

from search.optimizers import Implementation
from search.results import Params
from search.training_params import Precision
from search.units import GIB

SMALL_BYTES = 2 * GIB
"""Of a GPU for which the runs are quick."""
_BASE_BYTES, _MOST_TIMES = 8 * GIB, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One run. `backend` is the only attention allowed; None lets torch choose."""

    kind: str
    params: Params
    backend: SDPBackend | None = None

    @property
    def name(self) -> str:
        """All of it in words."""
        params = dict(self.params)
        words = [self.kind, str(params.pop("precision")), str(params.pop("optimizer", "adamw"))]
        words.append(str(params.pop("optimizer_implementation", "foreach")))
        if params.pop("activation_checkpointing", False):
            words.append("checkpointed")
        if self.backend is not None:
            words.append(self.backend.name.lower().replace("_", " "))
        return ", ".join([*words, *(f"{k} {v}" for k, v in params.items())]).replace("_", " ")

    def with_batch(self, batch_size: int) -> Configuration:
        """The same with another batch."""
        return replace(self, params={**self.params, "batch_size": batch_size})


_DECODER = {"width": 512, "depth": 3, "heads": 8, "sequence_length": 512, "batch_size": 16}
_ENCODER = {"width": 256, "depth": 2, "heads": 4, "sequence_length": 256, "batch_size": 64}
_PICTURES = {"width": 64, "depth": 4, "image_size": 64, "batch_size": 128}
_FEATURES = {"width": 4096, "depth": 4, "num_features": 1024, "batch_size": 4096}
_SIZES = {
    "language model": _DECODER,
    "encoder": _ENCODER,
    "convolutional net": _PICTURES,
    "perceptron": _FEATURES,
}
_FORM, _LOOP = Implementation.FUSED, Implementation.FOR_LOOP
_RUNS: tuple[tuple[str, str, Implementation | SDPBackend | None, dict[str, Any]], ...] = (
    ("language model", "32-true", None, {}),
    ("language model", "tf32", _FORM, {}),
    ("language model", "bf16-mixed", None, {}),
    ("language model", "bf16-mixed", _FORM, {}),
    ("language model", "bf16-mixed", _LOOP, {"depth": 2}),
    ("language model", "bf16-mixed", None, {"dropout": 0.1}),
    ("language model", "bf16-mixed", None, {"activation_checkpointing": True}),
    ("language model", "bf16-mixed", _FORM, {"activation_checkpointing": True, "dropout": 0.1}),
    ("language model", "16-mixed", None, {}),
    ("language model", "bf16-true", _FORM, {}),
    ("language model", "bf16-mixed", SDPBackend.MATH, {"depth": 2}),
    ("language model", "bf16-mixed", SDPBackend.EFFICIENT_ATTENTION, {"depth": 2}),
    ("language model", "bf16-mixed", SDPBackend.FLASH_ATTENTION, {"depth": 2}),
    ("language model", "bf16-mixed", None, {"micro_batch_size": 4, "depth": 2}),
    ("language model", "32-true", None, {"optimizer": "sgd", "width": 1024, "depth": 2}),
    ("encoder", "32-true", None, {"optimizer": "adam", "dropout": 0.1}),
    ("encoder", "bf16-mixed", None, {"dropout": 0.1}),
    ("encoder", "32-true", _LOOP, {"optimizer": "adam", "dropout": 0.0}),
    ("encoder", "16-mixed", _FORM, {"dropout": 0.1}),
    ("encoder", "32-true", None, {"activation_checkpointing": True}),
    ("convolutional net", "32-true", None, {"optimizer": "sgd"}),
    ("convolutional net", "bf16-mixed", None, {}),
    ("convolutional net", "16-mixed", None, {"activation_checkpointing": True}),
    ("perceptron", "32-true", None, {"optimizer": "adam", "dropout": 0.1}),
    ("perceptron", "bf16-true", _LOOP, {"optimizer": "sgd", "clip_norm": 0.0}),
)


def configurations(total_bytes: int, architecture: tuple[int, int]) -> list[Configuration]:
    """The 25 runs for a GPU: 16 bits are fp16 where it has no bf16 of its own.

    Args:
        total_bytes: its memory.
        architecture: its compute capability.

    Source: CUDA C++ Programming Guide: bf16 from compute capability 8.0 on.
    """
    times = min(_MOST_TIMES, total_bytes / _BASE_BYTES)
    return [_sized(*run, times=times, knows_bf16=architecture >= (8, 0)) for run in _RUNS]


def _sized(
    kind: str,
    precision: str,
    form: Implementation | SDPBackend | None,
    changes: dict[str, Any],
    *,
    times: float,
    knows_bf16: bool,
) -> Configuration:
    if not knows_bf16 and precision.startswith("bf16"):
        precision = Precision.FP16_MIXED.value
    params = {"precision": precision, **_SIZES[kind], **changes}
    if isinstance(form, Implementation):
        params["optimizer_implementation"] = form.value
    step = params.get("micro_batch_size", 1)
    params["batch_size"] = max(1, round(params["batch_size"] * times / step)) * step
    return Configuration(
        kind=kind,
        params=params,
        backend=form if isinstance(form, SDPBackend) else None,
    )


def boundary_runs(architecture: tuple[int, int]) -> list[Configuration]:
    """Those whose largest micro-batch is looked for; they have no batch yet."""
    half = "bf16-mixed" if architecture >= (8, 0) else "16-mixed"
    chosen = {
        "language model": {"precision": half, **_DECODER, "depth": 2},
        "encoder": {"precision": "32-true", **_ENCODER, "dropout": 0.1},
    }
    return [
        Configuration(
            kind=kind, params={name: params[name] for name in params if name != "batch_size"}
        )
        for kind, params in chosen.items()
    ]
