"""Liger's benchmarks of rotary embeddings and attention, in plain torch.

Source: linkedin/Liger-Kernel, `benchmark/scripts/benchmark_{rope,llama4_rope,qwen2vl_mrope,
fused_neighborhood_attention,multi_token_attention,sparse_multi_token_attention}.py`; transformers,
`models/{llama,llama4,qwen2_vl}/modeling_*.py` for the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.liger_bench import Backward, Bench, Setting, of_gradient

Pair = tuple[Tensor, Tensor]


def rope(setting: Setting) -> Bench:
    """Queries and keys turned by cosines and sines."""
    inputs, positions, width = _queries_and_keys(setting, transposed=True)
    cos, sin = (_angles(setting, positions, width) for _ in range(2))
    return _pairs(inputs, lambda: _turned(inputs, cos.unsqueeze(1), sin.unsqueeze(1)), positions)


def qwen2vl_mrope(setting: Setting) -> Bench:
    """The same with angles put together from three positions, in each step again."""
    inputs, positions, width = _queries_and_keys(setting, transposed=True)
    positions = positions.repeat(3)
    cos, sin = (_angles(setting, positions, width).view(3, 1, -1, width) for _ in range(2))
    part = width * 3 // 16
    sections = [width // 2 - 2 * part, part, part] * 2

    def forward() -> Pair:
        turns = [
            torch.cat(
                [piece[i % 3] for i, piece in enumerate(angle.split(sections, dim=-1))], dim=-1
            ).unsqueeze(1)
            for angle in (cos, sin)
        ]
        return _turned(inputs, *turns)

    return _pairs(inputs, forward, positions)


def llama4_rope(setting: Setting) -> Bench:
    """The same by multiplying complex numbers, in fp32."""
    inputs, positions, width = _queries_and_keys(setting, transposed=False)
    frequencies = _frequencies(setting, positions, width)
    turns = torch.polar(torch.ones_like(frequencies), frequencies)

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, :, None, :]).flatten(3)

    def forward() -> Pair:
        query, key = (turned(x) for x in inputs)
        return query.type_as(inputs[0]), key.type_as(inputs[1])

    return _pairs(inputs, forward, positions)


def fused_neighborhood_attention(setting: Setting) -> Bench:
    """Plain attention under a band mask; Liger's module stands beside it."""
    width = setting.size("hidden_size")
    modules = [_Neighbourhood(setting) for _ in range(2)]
    moved = [module.to(setting.device).to(setting.dtype) for module in modules]
    x = setting.noise(setting.size("batch_size"), setting.size("seq_len"), width, trained=True)
    return Bench(forward=lambda: moved[1](x), backward=of_gradient(torch.randn_like(x)))


def multi_token_attention(setting: Setting) -> Bench:
    """A softmax of masked scores, convolved; Liger's weights stand beside."""
    weights = _convolution(setting)
    spare = _convolution(setting)
    x, gradient = _scores(setting)

    def forward() -> Tensor:
        _ = spare
        mask = _causal(x)
        minus, zero = (torch.tensor(v, device=x.device, dtype=x.dtype) for v in (-1e9, 0.0))
        masked = x.masked_fill(~mask, minus)
        return _convolved(torch.softmax(masked, dim=-1), weights, setting).masked_fill(~mask, zero)

    return Bench(forward=forward, backward=of_gradient(gradient))


def sparse_multi_token_attention(setting: Setting) -> Bench:
    """The same with a projection on the simplex, by sorting, in fp32."""
    weights = _convolution(setting)
    spare = _convolution(setting)
    x, gradient = _scores(setting)

    def forward() -> Tensor:
        _ = spare
        mask = _causal(x)
        minus, zero = (torch.tensor(v, device=x.device) for v in (-1e9, 0.0))
        masked = x.to(torch.float32).masked_fill(~mask, minus)
        found = _convolved(_projected(masked), [w.to(torch.float32) for w in weights], setting)
        return found.masked_fill(~mask, zero).to(x.dtype)

    return Bench(forward=forward, backward=of_gradient(gradient))


class _Neighbourhood(nn.Module):
    """Source: the script's TorchNeighborhoodAttention."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        width, bias = setting.size("hidden_size"), bool(setting.config.get("bias", True))
        self.num_heads = setting.size("num_heads")
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, width, bias=bias)
        self.v_proj = nn.Linear(width, width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The mask's values are set one by one, in place: only its making is memory."""
        num_samples, length, width = x.shape
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        shape = num_samples, length, self.num_heads, width // self.num_heads
        query = query.view(shape).transpose(1, 2)
        key = key.view(shape).transpose(1, 2)
        value = value.view(shape).transpose(1, 2)
        scores = torch.matmul(query, key.transpose(-2, -1)) * 0.125
        mask = torch.zeros(length, length, device=x.device, dtype=torch.bool)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        output = torch.matmul(weights, value)
        output = output.transpose(1, 2).contiguous().view(num_samples, length, width)
        found: Tensor = self.out_proj(output)
        return found


def _queries_and_keys(setting: Setting, *, transposed: bool) -> tuple[Pair, Tensor, int]:
    """Queries and keys, a position for each token, and the width of a head."""
    width = setting.size("hidden_size", "H") // setting.size("num_q_heads")
    length = setting.size("seq_len", "T")
    query, key = (
        setting.noise(1, length, setting.size(heads), width, trained=True)
        for heads in ("num_q_heads", "num_kv_heads")
    )
    if transposed:
        query, key = query.transpose(1, 2), key.transpose(1, 2)
    return (query, key), torch.arange(length, device=setting.device), width


def _pairs(inputs: Pair, forward: Callable[[], Pair], *held: Tensor) -> Bench:
    """Gradients of two outputs with respect to two inputs, which do not keep them."""
    gradients = tuple(torch.randn_like(x) for x in inputs)

    def backward_of(outputs: Pair) -> Backward:
        def backward(*, retain: bool) -> None:
            _ = held
            torch.autograd.grad(outputs, inputs, gradients, allow_unused=True, retain_graph=retain)

        return backward

    return Bench(forward=forward, backward=backward_of)


def _frequencies(setting: Setting, positions: Tensor, width: int) -> Tensor:
    """An angle for each position and pair of columns, in fp32, by a matrix product."""
    inverse = torch.ones(1, width // 2, 1, device=setting.device)
    return (inverse @ positions[None, None, :].float()).transpose(1, 2)


def _angles(setting: Setting, positions: Tensor, width: int) -> Tensor:
    frequencies = _frequencies(setting, positions, width)
    doubled = torch.cat((frequencies, frequencies), dim=-1)
    return (doubled.cos() * 1.0).to(setting.dtype)


def _turned(inputs: Pair, cos: Tensor, sin: Tensor) -> Pair:
    query, key = inputs
    turned_query = (query * cos) + (_half_turned(query) * sin)
    turned_key = (key * cos) + (_half_turned(key) * sin)
    return turned_query, turned_key


def _half_turned(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def _scores(setting: Setting) -> Pair:
    length = setting.size("L")
    x = setting.noise(setting.size("B"), setting.size("C_in"), length, length)
    gradient = torch.randn_like(x)
    return x.requires_grad_(), gradient


def _causal(x: Tensor) -> Tensor:
    length = x.shape[-1]
    full = torch.ones(length, length, dtype=torch.bool, device=x.device)
    return torch.tril(full).view(1, 1, length, length)


def _convolution(setting: Setting) -> list[Tensor]:
    """A weight and, where asked for, a bias."""
    num_inputs = setting.size("C_in") // setting.size("groups")
    kernel = setting.size("K")
    weight = setting.noise(setting.size("C_out"), num_inputs, kernel, kernel, trained=True)
    bias = [setting.noise(setting.size("C_out"), trained=True)] if setting.bias else []
    return [weight, *bias]


def _convolved(x: Tensor, weights: list[Tensor], setting: Setting) -> Tensor:
    padding = setting.size("K") // 2
    return functional.conv2d(x, *weights, padding=padding, groups=setting.size("groups"))


def _projected(masked: Tensor) -> Tensor:
    """Source: the script's TorchSparseMultiTokenAttention."""
    ranked, _ = torch.sort(masked, dim=-1, descending=True)
    sums = torch.cumsum(ranked, dim=-1)
    ranks = torch.arange(1, masked.size(-1) + 1, device=masked.device, dtype=masked.dtype)
    ranks = ranks.view(1, 1, 1, -1)
    positive = ranked > -1e8
    condition = (1 + ranks * ranked > sums) & positive
    count = torch.sum(condition, dim=-1, keepdim=True)
    safe = torch.max(count, torch.ones_like(count))
    sum_of_count = torch.gather(sums, dim=-1, index=safe.long() - 1)
    tau = (sum_of_count - 1) / safe.to(masked.dtype)
    tau = torch.where(count == 0, torch.full_like(tau, float("inf")), tau)
    return torch.clamp(masked - tau, min=0)
