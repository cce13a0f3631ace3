"""Operators that CUDA composes differently: what autograd saves follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten

REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {}


@contextmanager
def installed_operators(architecture: tuple[int, int]) -> Iterator[None]:
    """While inside, operators on this CPU are composed as on a GPU of an architecture."""
    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    try:
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        yield
    finally:
        library._destroy()


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Source: torch's `aten/src/ATen/native/Dropout.cpp`, dropout and is_fused_kernel_acceptable."""
    if train and 0 < p < 1 and x.numel():
        return torch.native_dropout(x, p, train)[0]
    if p == 0 or not train or not x.numel():
        return x
    return x.mul(torch.zeros((), dtype=x.dtype, device=x.device))


def _attention(
    q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    if attn_mask is None and q.shape[-1] % 4 == 0:
        out = _aten._scaled_dot_product_efficient_attention(
            q,
            k,
            v,
            None,
            q.requires_grad or k.requires_grad or v.requires_grad,
            dropout_p,
            is_causal,
            scale=scale,
        )
        return out[0]
    return _aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
