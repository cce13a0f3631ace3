"""GPUMemNet's published memory of whole A100s, run again without a GPU.

Each row is one process: its script's step is run as it is described, its allocations go through
the simulated allocator, and what a process holds beside that, the CUDA context, is one published
constant (`search/memory/contexts.py`). Which of equally large free blocks the allocator takes hangs
on addresses that no document tells: both plausible orders are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import gpumemnet_mlp, gpumemnet_transformer
from benchmarks.gpumemnet_mlp import ACTIVATIONS, MlpSetting
from benchmarks.gpumemnet_transformer import TransformerSetting
from search.errors import InputError
from search.memory.allocator import simulate
from search.memory.allocator_blocks import SegmentOrder
from search.memory.contexts import published_context
from search.memory.cuda import Cuda
from search.memory.device import ByteEstimate
from search.memory.trace import record
from search.units import MIB

Row = Mapping[str, Any]

ARCHITECTURE = (8, 0)
USABLE_BYTES = 40_370 * MIB
"""Of an A100 of 40 GB, the context included: no process that went on was seen to hold more."""
_EXPECTED_ORDER = SegmentOrder.DOWNWARDS
_ARCHITECTURES = ("bottleneck", "gradual", "pyramid", "uniform")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The whole device of one process: what it needs, and whether it gets that.

    `reserved_bytes` is torch's part of what is expected.
    """

    low_bytes: int
    expected_bytes: int
    high_bytes: int
    reserved_bytes: int
    fits: bool


def covers(row: Row) -> bool:
    """Whether the row can be rebuilt."""
    return why_not(row) is None


def why_not(row: Row) -> str | None:
    """Why the row can't be rebuilt; None where it can."""
    setting = setting_of(row)
    if isinstance(setting, str):
        return setting
    if isinstance(setting, MlpSetting) and gpumemnet_mlp.ends_early(setting):
        return "one sample is left for batch norm, which raises: gone between two readings"
    published = row.get("params_true") or row.get("total_parameters") or row.get("total_params")
    built = _num_parameters(setting)
    if published is not None and published != built:
        return f"the model built has {built:,} parameters, the row says {published:,}"
    return None


def forecast(row: Row, context: ByteEstimate | None = None) -> Forecast:
    """What the row's process needs of an A100 of 40 GB.

    Args:
        row: one that is covered.
        context: what it holds beside torch's memory; default: what is published of A100s.
    """
    reason = why_not(row)
    if reason is not None:
        msg = f"{row.get('id', 'row')}: {reason}; ask `covers` first"
        raise InputError(msg)
    context = context or published_context(ARCHITECTURE)
    events = _events(_training(setting_of(row)))
    capacity_bytes = USABLE_BYTES - context.expected_bytes
    reserved_bytes, fits = {}, True
    for order in SegmentOrder:
        limited = simulate(events, capacity_bytes=capacity_bytes, segment_order=order)
        reserved_bytes[order] = limited.peak_reserved_bytes
        if limited.out_of_memory is not None:
            needed = simulate(events, segment_order=order)
            reserved_bytes[order] = needed.peak_reserved_bytes
            fits = fits and order is not _EXPECTED_ORDER
    return Forecast(
        low_bytes=context.low_bytes + min(reserved_bytes.values()),
        expected_bytes=context.expected_bytes + reserved_bytes[_EXPECTED_ORDER],
        high_bytes=context.high_bytes + max(reserved_bytes.values()),
        reserved_bytes=reserved_bytes[_EXPECTED_ORDER],
        fits=fits,
    )


def setting_of(row: Row) -> TransformerSetting | MlpSetting | str:
    """What the row's script was told, or why that is not known."""
    try:
        if "input_size" in row:
            return _mlp(row)
        if "input" in row.get("config", {}):
            return _mlp(_row_of_config(row))
        return _transformer({**row, **row.get("model_dims", {})})
    except KeyError as missing:
        return f"{missing} is not given"


def _transformer(row: Row) -> TransformerSetting | str:
    if row["hidden"] % row["heads"]:
        return f"a width of {row['hidden']} is no multiple of {row['heads']} heads"
    return TransformerSetting(
        width=row["hidden"],
        layers=row["layers"],
        heads=row["heads"],
        feedforward=row["ffn"],
        vocabulary=row["vocab"],
        classes=row["classes"],
        dropout=row["dropout"],
        length=row["seq_len"],
        batch=row["batch"] if "batch" in row else row["micro_batch"],
        num_samples=row.get("num_samples"),
    )


def _mlp(row: Row) -> MlpSetting | str:
    if row["architecture"] not in _ARCHITECTURES:
        return f"the architecture '{row['architecture']}' is not known"
    if row["activation"] not in ACTIVATIONS:
        return f"the activation '{row['activation']}' is not known"
    return MlpSetting(
        inputs=row["input_size"],
        outputs=row["output_size"],
        hidden_layers=row["hidden_layers"],
        architecture=row["architecture"],
        activation=row["activation"],
        dropout=row["dropout_rate"] if row["use_dropout"] else None,
        batch_norm=row["use_batch_norm"],
        batch=row["batch"],
    )


def _row_of_config(row: Row) -> Row:
    """A row whose configuration is given as texts, in the form of the others."""
    config = row["config"]
    return {
        "input_size": int(config["input"]),
        "output_size": int(config["output"]),
        "hidden_layers": int(config["depth"]),
        "architecture": config["arch"],
        "activation": config["activation"],
        "dropout_rate": float(config["dropout_p"]),
        "use_dropout": config["dropout"] == "True",
        "use_batch_norm": config["batchnorm"] == "True",
        "batch": int(config["batch"]),
    }


def _num_parameters(setting: TransformerSetting | MlpSetting) -> int:
    if isinstance(setting, MlpSetting):
        return gpumemnet_mlp.num_parameters(setting)
    return gpumemnet_transformer.num_parameters(setting)


def _training(setting: TransformerSetting | MlpSetting | str) -> Callable[[torch.device], object]:
    if isinstance(setting, MlpSetting):
        return lambda device: gpumemnet_mlp.train_network(setting, device)
    if isinstance(setting, TransformerSetting):
        return lambda device: gpumemnet_transformer.train_classifier(setting, device)
    raise InputError(setting)


def _events(train: Callable[[torch.device], object]) -> list[tuple[int, int]]:
    target = Cuda(architecture=ARCHITECTURE)
    recorded = record(lambda _: train(target.device), target)
    return [(event.storage, event.num_bytes) for event in recorded]
