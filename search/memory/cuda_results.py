"""Operators whose results differ in size, type or place on CUDA, where autograd does not look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from search.memory import cuda_recurrent

_aten = torch.ops.aten
_HOST = torch.device("cpu")


def _efficient_attention(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """The seed and offset of the dropout lie on the host while no graph is captured.

    Source: torch's `aten/src/ATen/native/transformers/cuda/attention.cu`,
    _efficient_attention_forward, note on seed and offset.
    """
    out, sums, _, _ = _aten._scaled_dot_product_efficient_attention.default(*args, **kwargs)  # noqa: SLF001
    seed, offset = (torch.empty((), dtype=torch.int64, device=_HOST) for _ in range(2))
    return out, sums, seed, offset


def _layer_norm(x: Tensor, shape: list[int], *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and deviation are kept in fp32.

    Source: torch's `aten/src/ATen/native/cuda/layer_norm_kernel.cu`, layer_norm_cuda.
    """
    out, mean, deviation = _aten.native_layer_norm.default(x, shape, *args)
    if x.itemsize < 4:
        mean, deviation = mean.float(), deviation.float()
    return out, mean, deviation


def _batch_norm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The same.

    Source: torch's `aten/src/ATen/native/cudnn/BatchNorm.cpp` and `cuda/Normalization.cuh`.
    """
    out, mean, deviation = _aten.native_batch_norm.default(*args)
    return out, mean.float(), deviation.float()


def _rms_norm(x: Tensor, shape: list[int], *_: Any) -> tuple[Tensor, Tensor]:
    """The root of each row is kept in fp32.

    Source: torch's `aten/src/ATen/native/cuda/layer_norm_kernel.cu`, _fused_rms_norm_cuda.
    """
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    wide = x.dtype if x.itemsize > 4 else torch.float32
    return torch.empty_like(x), x.new_empty(rows, dtype=wide)


REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_efficient_attention.default: _efficient_attention,  # noqa: SLF001
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_batch_norm.default: _batch_norm,
    _aten._fused_rms_norm.default: _rms_norm,  # noqa: SLF001
    **cuda_recurrent.RESULTS,
}
