"""Liger's benchmarks of feed-forward blocks, experts and element-wise functions, in plain torch.

Source: linkedin/Liger-Kernel, `benchmark/scripts/benchmark_{geglu,swiglu,tiled_mlp,fused_moe,
megatron_swiglu,relu_squared,softmax,sparsemax}.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.liger_bench import Bench, Setting, of_gradient, of_noise, of_ones, of_sum


class LlamaMLP(nn.Module):
    """Source: transformers, `models/llama/modeling_llama.py`."""

    def __init__(self, width: int, inner: int, activation: nn.Module) -> None:
        """Three weights and no bias."""
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.act_fn = activation

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        found: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return found


class _Tiled(torch.autograd.Function):
    """A block run slice by slice, again in the backward pass.

    Source: Liger's `benchmark/scripts/benchmark_tiled_mlp.py`, DeepSpeedTiledMLP.
    """

    @staticmethod
    def forward(ctx: Any, block: nn.Module, x: Tensor, num_shards: int) -> Tensor:
        ctx.block, ctx.num_shards = block, num_shards
        ctx.save_for_backward(x)
        with torch.no_grad():
            outputs = [block(shard) for shard in list(torch.chunk(x, num_shards, dim=-2))]
        return torch.cat(outputs, dim=-2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        (x,) = ctx.saved_tensors
        rows = x.detach().requires_grad_().view(-1, x.shape[-1])
        gradient = gradients[0].view(-1, x.shape[-1])
        total = torch.zeros_like(rows)
        start = 0
        for shard in list(torch.chunk(rows, ctx.num_shards, dim=0)):
            count = shard.shape[0]
            leaf = shard.detach().requires_grad_()
            leaf.grad = total.narrow(0, start, count)
            with torch.enable_grad():
                output = ctx.block(leaf)
            torch.autograd.backward(output, gradient.narrow(0, start, count))
            start += count
        return None, total.view(x.shape), None


def mlp(setting: Setting) -> Bench:
    """A gated block, whole or, for one provider, in slices."""
    width = setting.size("hidden_size")
    silu = setting.config["hidden_act"] == "silu"
    activation = nn.SiLU() if silu else nn.GELU(approximate="tanh")
    shape = setting.size("bsz", "B"), setting.size("T", "seq_len"), width
    x = setting.noise(*shape, trained=True)
    block = LlamaMLP(width, setting.size("intermediate_size"), activation)
    block = block.to(setting.device).to(setting.dtype)
    if setting.provider == "deepspeed_tiled":
        shards = max(1, setting.size("num_shards"))
        return Bench(
            forward=lambda: _Tiled.apply(block, x, shards), backward=of_noise, has_modes=True
        )
    return Bench(forward=lambda: block(x), backward=of_noise, has_modes=True)


def megatron_swiglu(setting: Setting) -> Bench:
    """Both halves of one tensor; the input's gradient is dropped before each step."""
    shape = setting.size("S"), setting.size("B"), 2 * setting.size("ffn_local")
    x = setting.noise(*shape, trained=True, dtype=torch.bfloat16)

    def forward() -> Tensor:
        x.grad = None
        gate, up = torch.chunk(x, 2, -1)
        return functional.silu(gate) * up

    return Bench(forward=forward, backward=of_sum, retains_graph=False)


def fused_moe(setting: Setting) -> Bench:
    """Experts in a loop, each with its share of the tokens; tokens are spread evenly.

    The experts' weights are products of random leaves: both are held, and gradients go through.
    """
    num_tokens, num_experts, top = setting.size("T"), setting.size("E"), setting.size("K")
    width, inner = setting.size("H"), setting.size("intermediate_dim")
    x = setting.noise(num_tokens, width, trained=True)
    gate_up = setting.noise(num_experts, 2 * inner, width, trained=True) * 0.02
    down = setting.noise(num_experts, width, inner, trained=True) * 0.02
    logits = setting.noise(num_tokens, num_experts, dtype=torch.float32)
    chosen = torch.topk(logits, top, dim=-1).indices.to(torch.int32)
    weights = torch.softmax(torch.gather(logits, 1, chosen.long()), dim=-1)
    weights = weights.to(setting.dtype).requires_grad_()
    del logits

    def forward() -> Tensor:
        output = torch.zeros_like(x)
        with torch.no_grad():
            mask = functional.one_hot(chosen.long(), num_classes=num_experts).permute(2, 1, 0)
            torch.greater(mask.sum(dim=(-1, -2)), 0)
        for expert in range(num_experts):
            _add_expert(output, (x, gate_up[expert], down[expert], weights), num_experts)
        return output

    return Bench(forward=forward, backward=of_noise, has_modes=True)


def _add_expert(
    output: Tensor, inputs: tuple[Tensor, Tensor, Tensor, Tensor], num_experts: int
) -> None:
    """Adds what one expert makes of its tokens; where they are takes two numbers each."""
    x, gate_up, down, weights = inputs
    count = max(1, weights.numel() // num_experts)
    places = torch.zeros(2, count, dtype=torch.int64, device=x.device)
    slot, token = places.unbind(0)
    rows = x[token]
    gate, up = functional.linear(rows, gate_up).chunk(2, dim=-1)
    rows = functional.silu(gate) * up
    rows = functional.linear(rows, down)
    rows = rows * weights[token, slot, None]
    output.index_add_(0, token, rows.to(output.dtype))


def relu_squared(setting: Setting) -> Bench:
    """Element-wise; the older script gives its tensor the swept width alone as its shape."""
    x = _vector_or_matrix(setting)
    held = torch.randn_like(x) if "hidden_size" in setting.config else None
    x.requires_grad_()

    def forward() -> Tensor:
        _ = held
        return torch.square(functional.relu(x))

    return Bench(forward=forward, backward=of_ones)


def softmax(setting: Setting) -> Bench:
    """The same of a softmax, without a gradient held beside it."""
    x = _vector_or_matrix(setting).requires_grad_()
    return Bench(forward=lambda: torch.softmax(x, dim=-1), backward=of_ones, has_modes=True)


def _vector_or_matrix(setting: Setting) -> Tensor:
    if "N" in setting.config:
        return setting.noise(setting.size("N"))
    return setting.noise(setting.size("M", "BT"), setting.size("hidden_size"))


def sparsemax(setting: Setting) -> Bench:
    """A projection on the simplex, by sorting. Source: the script's `torch_sparsemax`."""
    x = setting.noise(setting.num_tokens, setting.size("V", "hidden_size"))
    gradient = torch.randn_like(x)
    x.requires_grad_()
    return Bench(forward=lambda: _sparsemax(x), backward=of_gradient(gradient))


def _sparsemax(x: Tensor) -> Tensor:
    ranked, _ = torch.sort(x, dim=-1, descending=True)
    sums = torch.cumsum(ranked, dim=-1)
    ranks = torch.arange(1, x.size(-1) + 1, device=x.device, dtype=x.dtype).view(1, -1)
    bound = 1 + ranks * ranked
    support = bound > sums
    count = support.sum(dim=-1, keepdim=True).clamp(min=1)
    total = (ranked * support).sum(dim=-1, keepdim=True)
    tau = (total - 1) / count
    return torch.clamp(x - tau, min=0)
