"""Operators that CUDA composes differently: what autograd saves follows from it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from search.memory import cuda_recurrent
from search.memory.cuda_attention import Attention, chosen_backend
from search.memory.cuda_device import Architecture
from search.memory.cuda_library import installed_kernels

_aten = torch.ops.aten
_CUDNN_HIDDEN = -65_504.0
"""What cuDNN takes for minus infinity: the least number of fp16."""


@contextmanager
def installed_operators(architecture: Architecture) -> Iterator[None]:
    """While inside, operators on this CPU are composed as on a GPU of an architecture.

    Tensors of the host are treated alike, which costs nothing: their memory is not booked.
    """
    kernels: Mapping[str, Callable[..., Any]] = {
        "dropout": _dropout,
        "scaled_dot_product_attention": functools.partial(_attention, architecture),
        "softmax.int": functools.partial(_softmax, _aten._softmax),  # noqa: SLF001
        "log_softmax.int": functools.partial(_softmax, _aten._log_softmax),  # noqa: SLF001
        **cuda_recurrent.KERNELS,
    }
    whole = {"_fused_rms_norm": _never}
    with (
        installed_kernels("AutogradCPU", kernels.items()),
        installed_kernels("CPU", whole.items()),
    ):
        yield


def _never(*_: Any) -> None:
    """Stands where torch would break an operator up, so that it is kept whole.

    Fake tensors never reach it. So rms_norm keeps its input and a number for each row.

    Source: torch's `aten/src/ATen/native/layer_norm.cpp`, rms_norm_symint.
    """
    msg = "only fake tensors can be traced for a GPU"
    raise RuntimeError(msg)


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:  # noqa: FBT001 - the operator's own form
    """Keeps a mask of one byte for each element.

    Source: torch's `aten/src/ATen/native/Dropout.cpp`, dropout and is_fused_kernel_acceptable.
    """
    if train and 0 < p < 1 and x.numel():
        dropped: Tensor = torch.native_dropout(x, p, train)[0]
        return dropped
    if p == 0 or not train or not x.numel():
        return x
    return x.mul(torch.zeros((), dtype=x.dtype, device=x.device))


def _softmax(
    fused: Callable[..., Tensor], x: Tensor, dim: int, dtype: torch.dtype | None = None
) -> Tensor:
    """One kernel reads fp16 and writes fp32; any other type is converted first.

    Source: torch's `aten/src/ATen/native/SoftMax.cpp`, softmax and log_softmax.
    """
    if x.dtype is torch.float16 and dtype is torch.float32:
        return fused(x, dim, True)  # noqa: FBT003 - half_to_float
    return fused(x if dtype is None else x.to(dtype), dim, False)  # noqa: FBT003 - the same


def _attention(  # noqa: PLR0917 - the operator's own form
    architecture: Architecture,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the same
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Source: torch's `aten/src/ATen/native/transformers/attention.cpp`."""
    attention = Attention(
        query=query,
        key=key,
        value=value,
        mask=attn_mask,
        dropout=dropout_p,
        causal=is_causal,
        grouped=enable_gqa,
        architecture=architecture,
    )
    return _COMPOSED[chosen_backend(attention)](attention, scale)


def _flash(attention: Attention, scale: float | None) -> Tensor:
    """Heads whose width is no multiple of 8 are padded, in copies that autograd keeps."""
    width = attention.query.shape[-1]
    padding = -width % 8
    tensors = attention.tensors
    if padding:
        query, key, value = (functional.pad(tensor, (0, padding)) for tensor in tensors)
    else:
        query, key, value = tensors
    out: Tensor = _aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        query,
        key,
        value,
        attention.dropout,
        attention.causal,
        scale=1 / math.sqrt(width) if scale is None else scale,
    )[0]
    return out[..., :width] if padding else out


def _efficient(attention: Attention, scale: float | None) -> Tensor:
    out: Tensor = _aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        *attention.tensors,
        _aligned_bias(attention),
        attention.needs_grad,
        attention.dropout,
        attention.causal,
        scale=scale,
    )[0]
    return out


def _aligned_bias(attention: Attention) -> Tensor | None:
    """The mask as numbers to add, its rows padded to a multiple of 8, seen at the full shape.

    Source: `attention.cpp`, preprocess_mask, aligned_tensor and pad_bias.
    """
    bias = _additive(attention.mask, attention.query.dtype)
    if bias is None:
        return None
    if any(stride % 8 for stride in bias.stride()[:-1]) or bias.stride(-1) != 1:
        length = bias.shape[-1]
        bias = functional.pad(bias, (0, 8 - length % 8))[..., :length]
    return bias.expand(*attention.query.shape[:3], attention.key.shape[2])


def _additive(mask: Tensor | None, dtype: torch.dtype, hidden: float = -math.inf) -> Tensor | None:
    """A boolean mask as numbers to add in the type of the queries: 0, and `hidden` where False.

    Source: `attention.cpp`, convert_boolean_attn_mask_; seen in torch 2.13 on a CPU, which shares
    it.
    """
    if mask is None or mask.dtype is not torch.bool:
        return mask
    least = torch.full((), hidden, dtype=dtype, device=mask.device)
    return torch.where(mask, 0.0, least)


def _cudnn(attention: Attention, scale: float | None) -> Tensor:
    out: Tensor = _aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
        *attention.tensors,
        _additive(attention.mask, attention.query.dtype, _CUDNN_HIDDEN),
        attention.needs_grad,
        attention.dropout,
        attention.causal,
        return_debug_mask=False,
        scale=scale,
    )[0]
    return out


def _mathematics(attention: Attention, scale: float | None) -> Tensor:
    """Scores in full, in fp32 where half precision is not allowed to be summed.

    Source: `attention.cpp`, _scaled_dot_product_attention_math. Written out, because the original
    adds the mask out of place where it sees a fake tensor.
    """
    dtype = attention.query.dtype
    query, key, value = map(_accumulated, attention.tensors)
    factor = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else abs(scale))
    query = _aten.mul.Scalar(query, -factor if scale is not None and scale < 0 else factor)
    mask = attention.mask
    if attention.causal:
        mask = query.new_ones((query.shape[-2], key.shape[-2]), dtype=torch.bool).tril()
    bias = _additive(mask, query.dtype if attention.causal else dtype)
    if attention.grouped:
        key, value = (_repeated(tensor, query) for tensor in (key, value))
    scores = query @ _aten.mul.Scalar(key.transpose(-2, -1), factor)
    if bias is not None:
        scores.add_(bias)
    weights = _aten._safe_softmax(scores, -1)  # noqa: SLF001
    if attention.dropout > 0:
        weights = functional.dropout(weights, attention.dropout)
    unused = weights.to(dtype)  # returned beside the result, which goes later
    out: Tensor = (weights @ value).to(dtype)
    del unused
    return out


def _accumulated(tensor: Tensor) -> Tensor:
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    exact = half and not torch._C._get_math_sdp_allow_fp16_bf16_reduction()  # noqa: SLF001
    return tensor.float() if exact else tensor


def _repeated(tensor: Tensor, query: Tensor) -> Tensor:
    """Source: `attention.cpp`, pre_process_group_query_attention_input."""
    times = query.shape[-3] // tensor.shape[-3]
    return tensor if times == 1 else tensor.repeat_interleave(times, -3)


_COMPOSED: Mapping[SDPBackend, Callable[[Attention, float | None], Tensor]] = {
    SDPBackend.FLASH_ATTENTION: _flash,
    SDPBackend.EFFICIENT_ATTENTION: _efficient,
    SDPBackend.CUDNN_ATTENTION: _cudnn,
    SDPBackend.MATH: _mathematics,
}
