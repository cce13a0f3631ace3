"""What LitGPT's pretraining script measures: GPT of LitGPT in bf16, without a compiler, on one GPU.

Source: Lightning-AI/litgpt, `litgpt/model.py` and `extensions/thunder/pretrain.py` of May 2024
with `--compiler null --devices 1`; Fabric's "bf16-true" hands fp32 copies of what a module returns
to the script (lightning, `fabric/plugins/precision/half.py`, convert_output).

Tensors carry their shape: B samples, T positions, E hidden, V vocabulary; inside attention H heads
of D features, over G groups with Q heads each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.model_configs import Sizes

_NUM_STEPS = 2
_NUM_ACCUMULATED = 2
"""The script adds up 128 micro-batches: the first makes the gradients, the others repeat it."""
_NUM_VALIDATION_BATCHES = 2


def measure(sizes: Sizes, micro_batch: int, sequence_length: int, device: torch.device) -> object:
    """Runs the script's validation and optimizer steps; what it gives is kept to the end."""
    with device:
        model = Gpt(sizes, sequence_length).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    shape = micro_batch, sequence_length + 1
    with torch.no_grad():
        for _ in range(_NUM_VALIDATION_BATCHES):
            _loss(model, torch.zeros(shape, dtype=torch.int64).to(device))
    for _ in range(_NUM_STEPS):
        for _ in range(_NUM_ACCUMULATED):
            data_BT = torch.zeros(shape, dtype=torch.int64).to(device)
            loss = _loss(model, data_BT)
            (loss / _NUM_ACCUMULATED).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, data_BT, loss


def _loss(model: nn.Module, data_BT: Tensor) -> Tensor:
    ids_BT, targets_BT = data_BT[:, :-1].contiguous(), data_BT[:, 1:].contiguous()
    logits_BTV = model(ids_BT).float()
    return functional.cross_entropy(
        logits_BTV.reshape(-1, logits_BTV.shape[-1]), targets_BT.reshape(-1)
    )


class Gpt(nn.Module):
    """Token embedding, blocks, norm, head. Rotary tables are buffers, so in the weights' type."""

    cos: Tensor
    sin: Tensor

    def __init__(self, sizes: Sizes, sequence_length: int) -> None:
        """Builds the modules."""
        super().__init__()
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        self.wte = nn.Embedding(sizes.vocab, sizes.hidden)
        self.h = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.ln_f = RmsNorm(sizes.hidden)
        head_dim = sizes.hidden // sizes.heads
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.zeros(sequence_length, head_dim), persistent=False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits, B x T x V."""
        length = ids_BT.shape[1]
        x_BTE = self.wte(ids_BT)
        for block in self.h:
            x_BTE = block(x_BTE, self.cos[:length], self.sin[:length])
        logits_BTV: Tensor = self.lm_head(self.ln_f(x_BTE))
        return logits_BTV


class Block(nn.Module):
    """Attention and feed-forward, one after the other, each on a normed copy."""

    def __init__(self, sizes: Sizes) -> None:
        """Builds the modules."""
        super().__init__()
        self.norm_1, self.attn = RmsNorm(sizes.hidden), Attention(sizes)
        self.norm_2, self.mlp = RmsNorm(sizes.hidden), FeedForward(sizes)

    def forward(self, x_BTE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The block's output, B x T x E."""
        normed_BTE = self.norm_1(x_BTE)
        x_BTE = self.attn(normed_BTE, cos, sin) + x_BTE
        out_BTE: Tensor = self.mlp(self.norm_2(x_BTE)) + x_BTE
        return out_BTE


class Attention(nn.Module):
    """Grouped attention: one product for queries, keys and values; keys and values repeated."""

    def __init__(self, sizes: Sizes) -> None:
        """Builds the modules."""
        super().__init__()
        self.num_groups, self.num_queries = sizes.kv_heads, sizes.heads // sizes.kv_heads
        self.head_dim = sizes.hidden // sizes.heads
        width = (sizes.heads + 2 * sizes.kv_heads) * self.head_dim
        self.attn = nn.Linear(sizes.hidden, width, bias=False)
        self.proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x_BTE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The attended values, B x T x E."""
        num_samples, length, _ = x_BTE.shape
        qkv = self.attn(x_BTE).view(num_samples, length, self.num_groups, -1, self.head_dim)
        q_BGQTD, k, v = qkv.permute(0, 2, 3, 1, 4).split((self.num_queries, 1, 1), dim=2)
        if self.num_queries > 1:
            k, v = k.expand(q_BGQTD.shape), v.expand(q_BGQTD.shape)
        q, k, v = (one.reshape(num_samples, -1, length, self.head_dim) for one in (q_BGQTD, k, v))
        q_roped, k_roped = _rotated(q, cos, sin), _rotated(k, cos, sin)
        q = torch.cat((q_roped, q[..., self.head_dim :]), dim=-1)
        k = torch.cat((k_roped, k[..., self.head_dim :]), dim=-1)
        y_BHTD = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y_BTE: Tensor = self.proj(y_BHTD.transpose(1, 2).reshape(num_samples, length, -1))
        return y_BTE


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos) + (turned * sin)


class FeedForward(nn.Module):
    """Gated by SiLU."""

    def __init__(self, sizes: Sizes) -> None:
        """Builds the modules."""
        super().__init__()
        self.fc_1 = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.fc_2 = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.proj = nn.Linear(sizes.ffn, sizes.hidden, bias=False)

    def forward(self, x_BTE: Tensor) -> Tensor:
        """B x T x E."""
        gate, value = self.fc_1(x_BTE), self.fc_2(x_BTE)
        out_BTE: Tensor = self.proj(functional.silu(gate) * value)
        return out_BTE


class RmsNorm(nn.Module):
    """Computed in fp32; the weight is applied in the input's type."""

    def __init__(self, width: int) -> None:
        """Builds the weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTE: Tensor) -> Tensor:
        """B x T x E."""
        dtype, x_BTE = x_BTE.dtype, x_BTE.float()
        normed_BTE = x_BTE * torch.rsqrt((x_BTE * x_BTE).mean(-1, keepdim=True) + 1e-5)
        return normed_BTE.to(dtype) * self.weight
