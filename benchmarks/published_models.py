"""Published peak memory of whole models on one GPU, run again without it.

Each row is rebuilt from what it states and run by the script that measured it: eager, batches of
one fixed length. Its allocations go through the simulated allocator.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import litgpt_step, transformers_step
from benchmarks.model_configs import Sizes, config_class, sizes_of
from benchmarks.transformers_step import Adapter, Setting
from search.errors import InputError
from search.memory.allocator import CachingAllocator
from search.memory.catalogue import device_named
from search.memory.cuda import Cuda
from search.memory.events import Event
from search.memory.recorder import Recorder
from search.memory.trace import record

Row = Mapping[str, Any]

_PROJECTIONS: Mapping[str, str] = MappingProxyType(
    {name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
)
_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
)


class Reading(NamedTuple):
    """A row ready to run: what it does with the GPU, and which of its peaks was measured.

    `run` is told the device and what to call where the script resets its statistics; the first
    `unmeasured` stretches between resets do not count. `at_end` asks for what is left instead.
    """

    run: Callable[[torch.device, Callable[[], None]], object]
    unmeasured: int = 0
    at_end: bool = False


class _NotCoveredError(Exception):
    """Why a row can't be rebuilt."""


def covers(row: Row) -> bool:
    """Whether the row can be rebuilt and run."""
    return why_not(row) is None


def why_not(row: Row) -> str | None:
    """Why the row can't be rebuilt; None where it can."""
    try:
        _reading(row)
        _architecture(row)
    except _NotCoveredError as reason:
        return str(reason)
    return None


def predicted_allocated_bytes(row: Row) -> int:
    """The row's own statistic of allocated bytes, as torch would have printed it."""
    try:
        target, reading = Cuda(architecture=_architecture(row)), _reading(row)
    except _NotCoveredError as reason:
        msg = f"{row.get('id', 'row')}: {reason}"
        raise InputError(msg) from None
    resets: list[int] = []

    def run(recorder: Recorder) -> object:
        return reading.run(target.device, lambda: resets.append(len(recorder.events())))

    events = record(run, target)
    allocator, peaks = _replayed(events, resets)
    if reading.at_end:
        return allocator.statistics().allocated_bytes
    return max(peaks[reading.unmeasured :])


def _replayed(events: list[Event], resets: list[int]) -> tuple[CachingAllocator, list[int]]:
    """The allocator at the end, and the peak of each stretch between resets.

    A reset empties the cache and lets the peak begin anew, as scripts do.
    """
    allocator, peaks, begin = CachingAllocator(), [], 0
    for end in (*resets, len(events)):
        for event in events[begin:end]:
            if event.num_bytes > 0:
                allocator.malloc(event.storage, event.num_bytes)
            else:
                allocator.free(event.storage)
        peaks.append(allocator.statistics().peak_allocated_bytes)
        allocator.empty_cache()
        allocator.reset_peak()
        begin = end
    return allocator, peaks


def _architecture(row: Row) -> tuple[int, int]:
    if "gpu" not in row:
        return (8, 0)  # what a row without a GPU measures is the same on any
    name = re.sub(r"^1 ?x ", "", row["gpu"])
    try:
        architecture = device_named(name).architecture
    except InputError as error:
        raise _NotCoveredError(str(error)) from None
    if architecture is None:
        msg = f"the architecture of '{name}' is not known"
        raise _NotCoveredError(msg)
    return architecture


def _reading(row: Row) -> Reading:
    _refuse(not str(row.get("parallelism", "single")).startswith("single"), "several GPUs")
    _refuse(row.get("compile", False) not in (False, None, "eager"), "compiled")
    read = _READERS.get(row["group"])
    if read is None:
        msg = f"rows of '{row['group']}' are not rebuilt here"
        raise _NotCoveredError(msg)
    return read(row)


def _refuse(condition: bool, reason: str) -> None:  # noqa: FBT001 - reads as "refuse where, why"
    if condition:
        raise _NotCoveredError(reason)


def _vramcalc(row: Row) -> Reading:
    for package in ("transformers", "peft"):
        missing = importlib.util.find_spec(package) is None
        _refuse(missing, f"{package} is not installed (try: pip install -e '.[benchmarks]')")
    setting = _setting(row)

    def run(device: torch.device, reset: Callable[[], None]) -> object:
        return transformers_step.measure(setting, device, reset)

    return Reading(run, unmeasured=2 if setting.trains else 1)


def _setting(row: Row) -> Setting:
    _refuse(config_class(row["model"]) is None, f"'{row['model']}' is of no family known here")
    _refuse(row["task"] not in ("train", "inference"), f"the task '{row['task']}' is not rebuilt")
    _refuse(row["attention"] not in ("eager", "sdpa", "flash"), f"attention '{row['attention']}'")
    precision = re.fullmatch(r"(fp32\+)?(fp32|bf16|fp16)(-pure|-autocast)?", row["precision"])
    checkpointing = row.get("activation_checkpointing") or "none"
    optimizer = re.match(r"AdamW|SGD|$", row.get("optimizer") or "")
    if precision is None:
        msg = f"the precision '{row['precision']}' is not rebuilt"
        raise _NotCoveredError(msg)
    if optimizer is None or (row["task"] == "train" and not optimizer[0]):
        msg = f"the optimizer '{row.get('optimizer')}' is not rebuilt"
        raise _NotCoveredError(msg)
    _refuse(checkpointing != "none" and "non-reentrant" not in checkpointing, checkpointing)
    return Setting(
        model=row["model"],
        sizes=_sizes(row),
        attention=row["attention"],
        dtype=_DTYPES[precision[2]],
        autocast=precision[3] == "-autocast",
        trains=row["task"] == "train",
        micro_batch=_micro_batch(row),
        sequence_length=_sequence_length(row),
        optimizer=optimizer[0],
        checkpointing=checkpointing != "none",
        adapter=_adapter(row.get("adapter")),
    )


def _adapter(text: str | None) -> Adapter | None:
    """Of a text such as "LoRA r=16 on q,k,v,o; dropout 0; fp32 adapters"."""
    if text is None:
        return None
    found = re.match(r"LoRA r=(\d+) on ([\w,]+); dropout ([\d.]+)(?:; fp32 adapters)?$", text)
    names = found[2].split(",") if found else []
    if found is None or not set(names) <= set(_PROJECTIONS):
        msg = f"the adapter '{text}' is not rebuilt"
        raise _NotCoveredError(msg)
    return Adapter(
        rank=int(found[1]),
        projections=tuple(_PROJECTIONS[name] for name in names),
        dropout=float(found[3]),
    )


def _litgpt(row: Row) -> Reading:
    _refuse(row.get("compile") != "eager", "compiled")
    _refuse(row["precision"] != "bf16-true", f"the precision '{row['precision']}' is not rebuilt")
    _refuse(not row["optimizer"].startswith("AdamW"), f"the optimizer '{row['optimizer']}'")
    sizes, micro_batch, length = _sizes(row), _micro_batch(row), _sequence_length(row)

    def run(device: torch.device, _: Callable[[], None]) -> object:
        return litgpt_step.measure(sizes, micro_batch, length, device)

    return Reading(run)


def _lora_layer(row: Row) -> Reading:
    """Of a model such as "LoRALinear(512,512,r=8) fp32": one layer, just built."""
    found = re.fullmatch(r"LoRALinear\((\d+), ?(\d+), ?r=(\d+)\) (fp32|bf16|fp16)", row["model"])
    if found is None or row["statistic"] != "memory_allocated" or row["task"] != "init":
        msg = f"'{row['model']}' is not rebuilt"
        raise _NotCoveredError(msg)
    inputs, outputs, rank = map(int, found.groups()[:3])

    def run(device: torch.device, _: Callable[[], None]) -> object:
        shapes = ((inputs, outputs), (inputs, rank), (rank, outputs))
        return nn.ModuleList(
            nn.Linear(*shape, bias=False, device=device, dtype=_DTYPES[found[4]])
            for shape in shapes
        )

    return Reading(run, at_end=True)


_READERS: Mapping[str, Callable[[Row], Reading]] = MappingProxyType(
    {"vramcalc": _vramcalc, "litgpt-thunder": _litgpt, "torchtune-lora": _lora_layer}
)


def _sizes(row: Row) -> Sizes:
    sizes = sizes_of(row["model"], row.get("model_dims") or {})
    if sizes is None:
        msg = f"the sizes of '{row['model']}' are not given"
        raise _NotCoveredError(msg)
    return sizes


def _micro_batch(row: Row) -> int:
    _refuse(not isinstance(row.get("micro_batch"), int), "the micro-batch is not given")
    return int(row["micro_batch"])


def _sequence_length(row: Row) -> int:
    """Of a number, or a text that begins with one; texts such as "max 512" are not fixed."""
    found = re.match(r"\d+\b(?!.*variable)", str(row.get("seq_len")))
    if found is None:
        msg = f"the length '{row.get('seq_len')}' is not fixed"
        raise _NotCoveredError(msg)
    return int(found[0])
