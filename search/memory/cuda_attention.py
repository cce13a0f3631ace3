"""Which attention kernel CUDA would choose: flash, cuDNN, efficient or plain mathematics.

Source: torch's `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`, select_sdp_backend, and
`sdp_utils_cpp.h` beside it, whose checks are retold here. Left out: nested tensors, FP8.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from search.errors import InputError
from search.memory.cuda_device import Architecture

_HALF = (torch.float16, torch.bfloat16)
_NEWEST: Architecture = (12, 1)
_UNTOUCHED_ORDER = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One call of scaled_dot_product_attention, on a GPU of an architecture.

    Shapes: `query` (B, H, T, E), `key` (B, K, S, E), `value` (B, K, S, V); `mask` broadcasts to
    (B, H, T, S).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    grouped: bool
    architecture: Architecture

    @property
    def needs_grad(self) -> bool:
        """Whether a backward pass may follow."""
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key, value."""
        return self.query, self.key, self.value


def chosen_backend(attention: Attention) -> SDPBackend:
    """The first backend, in the order of preference, that takes the call.

    Raises:
        InputError: where every backend that is enabled refuses it.
    """
    for backend in _order(attention.architecture):
        if _TAKES[backend](attention):
            return backend
    msg = (
        "scaled_dot_product_attention: no backend that is enabled takes "
        f"{attention.query.dtype} of shape {tuple(attention.query.shape)} on compute capability "
        f"{'.'.join(map(str, attention.architecture))} (enable SDPBackend.MATH)"
    )
    raise InputError(msg)


def _order(architecture: Architecture) -> tuple[SDPBackend, ...]:
    """The user's order where one was set; else cuDNN first on data-centre Hopper and Blackwell.

    Source: `sdp_utils.cpp`, priority_order and check_prefer_cudnn_attention, for the cuDNN that
    torch 2.13 ships (newer than 9.15).
    """
    order = tuple(
        SDPBackend(number)
        for number in torch._C._get_sdp_priority_order()  # noqa: SLF001
        if SDPBackend(number) in _TAKES
    )
    wanted = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    if order == _UNTOUCHED_ORDER and wanted and architecture[0] in (9, 10):
        return (SDPBackend.CUDNN_ATTENTION, *_UNTOUCHED_ORDER[:3])
    return order


def _takes_flash(attention: Attention) -> bool:
    """Source: can_use_flash_attention."""
    query, key, value = attention.tensors
    return (
        torch._C._get_flash_sdp_enabled()  # noqa: SLF001 - its public form has no types
        and _has_four_dimensions(attention)
        and attention.mask is None
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256
        and (8, 0) <= attention.architecture <= _NEWEST
        and _flash_trains(attention)
        and (not attention.causal or query.shape[-2] == key.shape[-2])
        and _has_dtype(attention, _HALF)
        and _heads_match(attention, takes_groups=True)
        and _has_length(attention)
        and _last_is_dense(attention, one_is_dense=True)
    )


def _flash_trains(attention: Attention) -> bool:
    """Source: check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120."""
    small = (8, 6) <= attention.architecture <= (8, 9) or attention.architecture[0] == 12
    width = attention.query.shape[-1]
    fits = width <= 192 or (attention.dropout == 0 and width > 224)
    return not (attention.needs_grad and small) or fits


def _takes_efficient(attention: Attention) -> bool:
    """Source: can_use_mem_efficient_attention."""
    query, key, value = attention.tensors
    alignment = matmul_alignment(query.dtype, attention.architecture)
    known = (torch.float16, torch.float32)
    return (
        torch._C._get_mem_efficient_sdp_enabled()  # noqa: SLF001 - the same
        and _has_four_dimensions(attention)
        and (5, 0) <= attention.architecture <= _NEWEST
        and query.shape[-1] == key.shape[-1] > 0
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
        and value.shape[-1] > 0
        and _has_length(attention)
        and _last_is_dense(attention, one_is_dense=False)
        and _heads_match(attention, takes_groups=False)
        and _has_dtype(attention, known if attention.architecture < (8, 0) else (*_HALF, *known))
    )


def matmul_alignment(dtype: torch.dtype, architecture: Architecture) -> int:
    """Elements that a head's width must be a multiple of for the efficient kernel.

    Source: minimum_gemm_alignment and use_tensor_cores.
    """
    is_half = dtype in _HALF
    with_tensor_cores = architecture[0] >= 8 or (architecture[0] == 7 and is_half)
    least = 4 if architecture[0] >= 8 else 1
    return max(least, 8 if is_half else 4) if with_tensor_cores else least


def _takes_cudnn(attention: Attention) -> bool:
    """Source: can_use_cudnn_attention."""
    strict = (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )
    known = _HALF if attention.architecture[0] >= 8 else (torch.float16,)
    return (
        torch._C._get_cudnn_sdp_enabled()  # noqa: SLF001 - the same
        and _has_four_dimensions(attention)
        and not strict
        and _has_dtype(attention, known)
        and _mask_broadcasts(attention)
        and (8, 0) <= attention.architecture <= _NEWEST
        and (attention.dropout * 16).is_integer()
        and _has_length(attention)
        and _last_is_dense(attention, one_is_dense=True)
        and _heads_match(attention, takes_groups=True)
        and _cudnn_has_shape(attention)
    )


def _cudnn_has_shape(attention: Attention) -> bool:
    """Source: check_cudnn_tensor_shapes, for cuDNN 9.11 and newer."""
    batch, heads, length, width = attention.query.shape
    value_width = attention.value.shape[-1]
    wide = attention.architecture[0] in (9, 10) and (width, value_width) == (192, 128)
    limit = 192 if wide else 128
    return (
        max(batch, heads) <= 65_535
        and max(width, value_width) <= limit
        and width % 8 == 0
        and value_width % 8 == 0
        and attention.key.shape[2] != 1
        and (attention.dropout == 0 or length != 1)
    )


def _mask_broadcasts(attention: Attention) -> bool:
    """Source: check_attn_mask_shape."""
    mask = attention.mask
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    scores = (*attention.query.shape[:3], attention.key.shape[2])[-mask.dim() :]
    return all(size in (1, wanted) for size, wanted in zip(mask.shape, scores, strict=True))


def _has_four_dimensions(attention: Attention) -> bool:
    return all(tensor.dim() == 4 for tensor in attention.tensors)


def _has_dtype(attention: Attention, known: tuple[torch.dtype, ...]) -> bool:
    dtypes = {tensor.dtype for tensor in attention.tensors}
    return len(dtypes) == 1 and dtypes <= set(known)


def _has_length(attention: Attention) -> bool:
    return attention.query.shape[-2] > 0 and attention.key.shape[-2] > 0


def _last_is_dense(attention: Attention, *, one_is_dense: bool) -> bool:
    """Source: check_last_dim_stride_equals_1_dense."""
    dense = all(tensor.stride(-1) == 1 for tensor in attention.tensors)
    mask_is_dense = attention.mask is None or attention.mask.stride(-1) == 1
    return (dense or (one_is_dense and attention.query.shape[-1] == 1)) and mask_is_dense


def _heads_match(attention: Attention, *, takes_groups: bool) -> bool:
    """Source: check_batch_size_and_num_heads_dense.

    Until after 2.13 the efficient kernel takes no groups.
    """
    batches = {tensor.shape[0] for tensor in attention.tensors}
    query, key, value = (tensor.shape[-3] for tensor in attention.tensors)
    if len(batches) > 1:
        return False
    if attention.grouped and takes_groups:
        return key == value and query % key == 0
    return query == key == value


def _takes_math(_: Attention) -> bool:
    return torch._C._get_math_sdp_enabled()  # noqa: SLF001 - the same


_TAKES: Mapping[SDPBackend, Callable[[Attention], bool]] = {
    SDPBackend.FLASH_ATTENTION: _takes_flash,
    SDPBackend.EFFICIENT_ATTENTION: _takes_efficient,
    SDPBackend.MATH: _takes_math,
    SDPBackend.CUDNN_ATTENTION: _takes_cudnn,
}
