"""What one of others' tools says of published rows: run by the interpreter that has it.

    python -m benchmarks.peer_estimates NAME < ROWS.jsonl

Reads rows, one JSON object a line; writes a line for each: its bytes, or why there are none.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from unittest import mock

import torch

from benchmarks.peer_subjects import Subject, subject_of

_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_NUM_STEPS = 2


class NotForThisError(Exception):
    """Why a tool has no answer for a row."""


def vramcalc(subject: Subject) -> int:
    """Its `total`: what it compares with `max_memory_allocated`, so without its overhead."""
    from vramcalc.estimate import estimate

    if subject.decoder is None:
        msg = "knows Llama-like decoders alone"
        raise NotForThisError(msg)
    pure = subject.compute_dtype is subject.dtype
    found = estimate(
        dict(subject.decoder),
        mode="train" if subject.trains else "inference",
        dtype=_TYPES[subject.compute_dtype],
        batch=subject.batch,
        seq_len=subject.sample_shape[0],
        lora_rank=subject.rank,
        grad_checkpoint=subject.checkpointing,
        optimizer=subject.optimizer or "adamw",  # which it ignores where nothing trains
        precision="pure" if pure else "amp",
        attn_impl=subject.attention,
    )
    return int(found.total)


def kitsune(subject: Subject) -> int:
    """Its total, which has 15 % of overhead in it."""
    from kitsune.predict import LoRAConfig, estimate_lora_memory, predict_memory

    with torch.device("meta" if subject.decoder else "cpu"):
        model = subject.build() if subject.rank is None else _without_adapters(subject)
    sizes = {"batch_size": subject.batch, "dtype": subject.compute_dtype}
    if subject.rank is not None:
        config = LoRAConfig(rank=subject.rank, target_modules=subject.projections)
        return int(
            estimate_lora_memory(model, subject.sample_shape, config=config, **sizes).total_bytes
        )
    optimizer = subject.optimizer if subject.trains else "none"
    found = predict_memory(
        model, subject.sample_shape, optimizer=optimizer, training=subject.trains, **sizes
    )
    return int(found.total_bytes)


def vram_check(subject: Subject) -> int:
    """The total of its four parts, and the frozen weights where adapters train."""
    from vram_check import analyze

    with torch.device("meta"):
        model = subject.build()
    found = analyze(
        model,
        batch_size=subject.batch,
        dtype=_TYPES[subject.dtype],
        optimizer=subject.optimizer if subject.trains else "none",
        training=subject.trains,
        seq_len=subject.sample_shape[0],
    )
    frozen = found["frozen"]
    return int(found["estimate"].total_bytes + (frozen["frozen_bytes"] if frozen else 0))


def accelerate(subject: Subject) -> int:
    """Of `accelerate estimate-memory`: training using Adam, or loading where nothing trains."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    if subject.rank is not None:
        msg = "knows no adapters"
        raise NotForThisError(msg)
    with torch.device("meta"):
        model = subject.build().float()
    num_bytes, _ = calculate_maximum_sizes(model)
    half = subject.compute_dtype is not torch.float32
    if not subject.trains:
        return num_bytes // 2 if half else num_bytes
    return max(estimate_training_usage(num_bytes, "float16" if half else "float32").values())


def deepspeed(subject: Subject) -> int:
    """Its formula for the model's states under ZeRO-2, on one GPU without offloading."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    if not subject.trains or subject.rank is not None:
        msg = "a formula for the training of all weights"
        raise NotForThisError(msg)
    with torch.device("meta"):
        num_params = sum(parameter.numel() for parameter in subject.build().parameters())
    _, num_bytes = estimate_zero2_model_states_mem_needs(num_params, 1, 1, cpu_offload=False)
    return int(num_bytes)


def mem_tracker(subject: Subject) -> int:
    """The peak that torch's MemTracker sees of two steps on fake tensors of the CPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with torch.device("meta"):
        built = subject.build()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, mock.patch("torch.optim.adam._get_value", return_value=1.0):
        model, batch, tracker = _placed(built), subject.inputs(), MemTracker()
        optimizer = _optimizer(subject, model) if subject.trains else None
        externals = [model, batch] if optimizer is None else [model, optimizer, batch]
        tracker.track_external(*externals)
        with tracker:
            if optimizer is None:
                with torch.no_grad():
                    kept = model(input_ids=batch, use_cache=True)
                del kept
            else:
                for _ in range(_NUM_STEPS):
                    _step(subject, model, batch, optimizer)
                    tracker.reset_mod_stats()
        peaks = tracker.get_tracker_snapshot("peak")
    return sum(parts["Total"] for parts in peaks.values())


def _placed(model: torch.nn.Module) -> torch.nn.Module:
    """A model of the meta device on the CPU: fake tensors can be neither converted nor copied."""
    model = model.to_empty(device="cpu")
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


def _optimizer(subject: Subject, model: torch.nn.Module) -> torch.optim.Optimizer:
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if subject.checkpointing:
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    form = {"fused": True} if subject.fused else {"foreach": True}
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[subject.optimizer]
    return kind(params, **form)  # type: ignore[arg-type]


def _step(
    subject: Subject, model: torch.nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer
) -> None:
    model.train()
    with subject.autocast:
        loss = subject.loss(model, batch)
    loss.backward()
    del loss
    optimizer.step()
    optimizer.zero_grad(set_to_none=not subject.keeps_gradients)


def _without_adapters(subject: Subject) -> torch.nn.Module:
    """The model that the adapters are for: the tool adds its own."""
    return subject.build().base_model.unload()  # type: ignore[operator,union-attr,no-any-return]


PEERS: Mapping[str, Callable[[Subject], int]] = {
    "vramcalc": vramcalc,
    "torch-kitsune": kitsune,
    "vram-check": vram_check,
    "accelerate": accelerate,
    "DeepSpeed": deepspeed,
    "MemTracker": mem_tracker,
}


def answer(name: str, line: str) -> dict[str, str | int]:
    """The tool's answer for a row given as JSON."""
    row = json.loads(line)
    try:
        return {"id": row["id"], "bytes": PEERS[name](subject_of(row))}
    except NotForThisError as reason:
        return {"id": row["id"], "reason": str(reason)}
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is its answer
        first = str(error).strip().partition("\n")[0]
        return {"id": row["id"], "reason": f"{type(error).__name__}: {first}"}


def main() -> None:
    """Answers for each row; what tools print themselves goes to the standard error."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            found = answer(sys.argv[1], line)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
