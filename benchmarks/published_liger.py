"""Liger-Kernel's published peak memory of plain torch, run again without a GPU.

Each row is one operator's benchmark: it is built as the script of its version builds it, repeated
as often, and its allocations go through the simulated allocator. Triton's kernels and compiled
providers are not rebuilt.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks import liger_attention as attention
from benchmarks import liger_feedforward as feedforward
from benchmarks import liger_losses as losses
from benchmarks import liger_norms as norms
from benchmarks import liger_policy as policy
from benchmarks import liger_preference as preference
from benchmarks.liger_bench import Bench, Setting, median_peak_bytes
from search.errors import InputError
from search.memory.cuda import Cuda

BUILDERS: Mapping[str, Callable[[Setting], Bench]] = MappingProxyType(
    {
        "cross_entropy": losses.cross_entropy,
        "distill_cosine_loss": losses.distill_cosine_loss,
        "distill_jsd_loss": losses.distill_jsd_loss,
        "dpo_loss": preference.dpo_loss,
        "dyt": norms.dyt,
        "embedding": losses.embedding,
        "fused_add_rms_norm": norms.fused_add_rms_norm,
        "fused_linear_cpo_loss": preference.cpo_loss,
        "fused_linear_cross_entropy": losses.fused_linear_cross_entropy,
        "fused_linear_grpo_loss_sequence": policy.grpo_loss,
        "fused_linear_grpo_loss_token": policy.grpo_loss,
        "fused_linear_jsd": losses.fused_linear_jsd,
        "fused_linear_orpo_loss": preference.orpo_loss,
        "fused_linear_simpo_loss": preference.cpo_loss,
        "fused_moe": feedforward.fused_moe,
        "fused_neighborhood_attention": attention.fused_neighborhood_attention,
        "geglu": feedforward.mlp,
        "group_norm": norms.group_norm,
        "jsd": losses.jsd,
        "kl_div": losses.kl_div,
        "kto_loss": preference.kto_loss,
        "layer_norm": norms.layer_norm,
        "llama4_rope": attention.llama4_rope,
        "megatron_rms_norm": norms.megatron_rms_norm,
        "megatron_swiglu": feedforward.megatron_swiglu,
        "multi_token_attention": attention.multi_token_attention,
        "poly_norm": norms.poly_norm,
        "qwen2vl_mrope": attention.qwen2vl_mrope,
        "relu_squared": feedforward.relu_squared,
        "rms_norm": norms.rms_norm,
        "rope": attention.rope,
        "softmax": feedforward.softmax,
        "sparse_multi_token_attention": attention.sparse_multi_token_attention,
        "sparsemax": feedforward.sparsemax,
        "swiglu": feedforward.mlp,
        "tiled_geglu": feedforward.mlp,
        "tiled_swiglu": feedforward.mlp,
        "tvd": losses.tvd,
    }
)

ARCHITECTURES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "A100": (8, 0),
        "3090": (8, 6),
        "4090": (8, 9),
        "H100": (9, 0),
        "H200": (9, 0),
        "B200": (10, 0),
    }
)
"""Compute capabilities. Source: NVIDIA's list of CUDA GPUs."""

PROVIDERS = frozenset({"huggingface", "torch", "deepspeed_tiled"})
"""Those that run torch's own operators, one by one."""


def covers(row: Mapping[str, Any]) -> bool:
    """Whether the row can be rebuilt."""
    return why_not(row) is None


def why_not(row: Mapping[str, Any]) -> str | None:
    """Why the row can't be rebuilt; None where it can."""
    operator, provider = _named(row)
    if operator not in BUILDERS:
        return f"no benchmark of '{operator}' is rebuilt"
    if provider not in PROVIDERS:
        return f"'{provider}' runs no operators of torch alone"
    if _architecture(row) is None:
        return f"the architecture of '{row['gpu']}' is not known"
    if "model_config" in row["config"]:
        return "the sizes of the model are not given"
    return None


def predicted_allocated_bytes(row: Mapping[str, Any]) -> int:
    """The row's predicted `torch.cuda.max_memory_allocated`, the median its script takes."""
    reason, architecture = why_not(row), _architecture(row)
    if reason is not None or architecture is None:
        msg = f"{row.get('id', 'row')}: {reason}; ask `covers` first"
        raise InputError(msg)
    operator, provider = _named(row)
    target = Cuda(architecture=architecture)
    setting = Setting(
        config=row["config"], version=_version(row), provider=provider, device=target.device
    )
    mode = row["task"].removeprefix("op:")
    return median_peak_bytes(BUILDERS[operator], setting, mode=mode, target=target)


def line(row: Mapping[str, Any]) -> str:
    """The row, measured beside predicted in MiB, or why it is not rebuilt."""
    name = f"{row['id']}  {row['grade']}  {' '.join(_named(row))}  {row['task']}"
    sizes = {k: v for k, v in row["config"].items() if str(v).isdecimal()}
    reason = why_not(row)
    if reason is not None:
        return f"{name}  {sizes}  not rebuilt: {reason}"
    predicted = predicted_allocated_bytes(row) / 2**20
    error_percent = 100 * (predicted / row["value"] - 1)
    return f"{name}  {sizes}  {row['value']:.2f}  {predicted:.2f}  {error_percent:+.3f} %"


def main() -> None:
    """One line a row of the grades asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of published.json")
    parser.add_argument("--grades", default="A")
    options = parser.parse_args()
    rows = json.loads((options.data / "published.json").read_text(encoding="utf-8"))["rows"]
    for row in rows:
        if row["group"] == "liger" and row["grade"] in options.grades:
            print(line(row), flush=True)


def _named(row: Mapping[str, Any]) -> tuple[str, str]:
    """The operator and who computed it, of a name such as "op:jsd (torch baseline)"."""
    found = re.fullmatch(r"op:(\S+) \((\S+)(?: baseline)?\)", row["model"])
    return (found[1], found[2]) if found else (str(row["model"]), "")


def _version(row: Mapping[str, Any]) -> tuple[int, ...]:
    found = re.search(r"liger (\d+(?:\.\d+)*)", row["software"])
    return tuple(map(int, found[1].split("."))) if found else ()


def _architecture(row: Mapping[str, Any]) -> tuple[int, int] | None:
    return next((found for name, found in ARCHITECTURES.items() if name in row["gpu"]), None)


if __name__ == "__main__":
    main()
