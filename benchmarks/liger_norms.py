"""Liger's benchmarks of norms, against plain torch and transformers.

The older scripts build the modules of all providers and time one of them: `spare` are those that
are only there.

Source: linkedin/Liger-Kernel, `benchmark/scripts/benchmark_*norm.py` and `benchmark_dyt.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.liger_bench import Backward, Bench, Setting, of_gradient, of_noise, of_sum


class LlamaRMSNorm(nn.Module):
    """Computes in fp32, rounds, then scales: by fp32 weights the result is fp32 again.

    Source: transformers, `models/llama/modeling_llama.py`.
    """

    def __init__(self, width: int) -> None:
        """Weights are fp32 until they are moved."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The normalized rows."""
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(dtype)


class AddRMSNorm(LlamaRMSNorm):
    """The same of a sum, which is handed on beside it."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The normalized rows, and the rows."""
        dtype = x.dtype
        x = x.to(torch.float32)
        residual = residual.to(torch.float32)
        x = x + residual
        residual = x
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(dtype), residual.to(dtype)


class PolyNorm(nn.Module):
    """A weighted sum of three normalized powers."""

    def __init__(self) -> None:
        """Three weights and a bias, fp32."""
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1 / 3))
        self.bias = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        dtype = x.dtype
        x = x.to(torch.float32)
        powers = x**3, x**2, x**1
        cubed, squared, plain = [
            power * torch.rsqrt(power.pow(2).mean(-1, keepdim=True) + 1e-6) for power in powers
        ]
        summed = self.weight[0] * cubed + self.weight[1] * squared + self.weight[2] * plain
        return (summed + self.bias).to(dtype)


class DynamicTanh(nn.Module):
    """A scaled tanh in the place of a norm. Source: Liger's `test/transformers/test_dyt.py`."""

    def __init__(self, width: int) -> None:
        """One number to scale by, and a weight and a bias a column, fp32."""
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1) * 0.5)
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """The squashed rows."""
        return self.gamma * torch.tanh(x * self.alpha) + self.beta


def rms_norm(setting: Setting) -> Bench:
    """Rows of any width, through a layer whose weights stay fp32."""
    return _norm(setting, LlamaRMSNorm, num_spare=1, swept="H")


def layer_norm(setting: Setting) -> Bench:
    """The same with torch's own layer."""
    return _norm(setting, nn.LayerNorm, num_spare=1, swept="N")


def poly_norm(setting: Setting) -> Bench:
    """The same with a norm of powers; its four numbers have no width."""
    return _norm(setting, lambda _: PolyNorm(), num_spare=1, swept="H")


def dyt(setting: Setting) -> Bench:
    """Rows through a scaled tanh; beside it stand a compiled module and Liger's own."""
    width = setting.size("hidden_size")
    return _held(setting, (setting.size("BT"), width), lambda: DynamicTanh(width), num_spare=2)


def group_norm(setting: Setting) -> Bench:
    """Images of one dimension, normalized by groups of channels."""
    old = "C" in setting.config
    num_channels = setting.size("C", "num_channels")
    num_groups = num_channels // setting.size("channels_per_group")
    shape = (setting.size("M"), num_channels, setting.size("H"))
    if old:
        return _held(setting, shape, lambda: nn.GroupNorm(num_groups, num_channels), num_spare=1)
    layer = nn.GroupNorm(num_groups, num_channels).to(device=setting.device, dtype=setting.dtype)
    x = setting.noise(*shape, trained=True)
    return Bench(forward=lambda: layer(x), backward=of_noise, has_modes=True)


def fused_add_rms_norm(setting: Setting) -> Bench:
    """Two inputs and two outputs, each with a gradient that is there from the start."""
    width = setting.size("H", "hidden_size")
    fused, naive, _liger = (AddRMSNorm(width).to(setting.device) for _ in range(3))
    pair = AddRMSNorm(width).to(setting.device)  # the norm inside the unfused module of Liger
    x, residual = (setting.noise(setting.size("M", "BT"), width) for _ in range(2))
    gradients = torch.randn_like(x), torch.randn_like(residual)
    x.requires_grad_()
    residual.requires_grad_()
    spare = fused, pair, _liger

    def backward_of(outputs: tuple[Tensor, Tensor]) -> Backward:
        def backward(*, retain: bool) -> None:
            torch.autograd.backward(outputs, gradients, retain_graph=retain)

        return backward

    return Bench(
        forward=lambda: _beside(naive(x, residual), spare),
        backward=backward_of,
        retains_graph=False,
    )


def megatron_rms_norm(setting: Setting) -> Bench:
    """Rows of bf16 through torch's own RMSNorm."""
    width = setting.size("H")
    layer = nn.RMSNorm(width, eps=1e-6).to(setting.device).to(torch.bfloat16)
    shape = (setting.size("S"), setting.size("B"), width)
    x = setting.noise(*shape, trained=True, dtype=torch.bfloat16)
    return Bench(forward=lambda: layer(x), backward=of_sum, retains_graph=False)


def _norm(
    setting: Setting, layer_of: Callable[[int], nn.Module], *, num_spare: int, swept: str
) -> Bench:
    """Rows through a norm, as scripts that sweep the width, or the number of rows, set it up."""
    if swept in setting.config:
        width = setting.size(swept)
        return _held(
            setting, (setting.size("M"), width), lambda: layer_of(width), num_spare=num_spare
        )
    width = setting.size("hidden_size")
    layer = layer_of(width).to(setting.device)
    if isinstance(layer, nn.LayerNorm):  # which takes no mixed types
        layer = layer.to(setting.dtype)
    x = setting.noise(setting.size("BT"), width, trained=True)
    return Bench(forward=lambda: layer(x), backward=of_noise, has_modes=True)


def _held(
    setting: Setting, shape: tuple[int, ...], make: Callable[[], nn.Module], *, num_spare: int
) -> Bench:
    """A layer whose output's gradient is held from the start, and modules nobody calls."""
    spare = [make().to(setting.device) for _ in range(num_spare)]
    layer = make().to(setting.device)
    x = setting.noise(*shape)
    gradient = torch.randn_like(x)
    x.requires_grad_()
    return Bench(forward=lambda: _beside(layer(x), spare), backward=of_gradient(gradient))


def _beside(output: object, _spare: object) -> object:
    """The output; what stands beside it lives as long as the caller."""
    return output
