"""What a model that names CUDA in its autocast means, where `cpu` stands in for the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.amp.autocast_mode import autocast

_GPU = "cuda"
_STAND_IN = "cpu"


@contextmanager
def installed_names() -> Iterator[None]:
    """While inside, `torch.autocast("cuda")` and questions after it reach the stand-in.

    Left out: a decorator `@torch.autocast("cuda")` that was applied before, which torch turned off
    when it found no GPU.
    """
    replacements: list[tuple[Any, str, Any]] = [
        (autocast, "__init__", functools.partialmethod(_begin, autocast.__init__)),
        (torch, "is_autocast_enabled", functools.partial(_is_enabled, torch.is_autocast_enabled)),
        (torch, "get_autocast_dtype", functools.partial(_dtype, torch.get_autocast_dtype)),
        (
            torch,
            "get_autocast_gpu_dtype",
            functools.partial(_dtype, torch.get_autocast_dtype, _GPU),
        ),
    ]
    with ExitStack() as stack:
        for owner, name, replacement in replacements:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def _begin(
    region: autocast,
    begin: Callable[..., None],
    device_type: str,
    dtype: torch.dtype | None = None,
    *args: Any,
    **options: Any,
) -> None:
    if device_type == _GPU:
        device_type, dtype = _STAND_IN, dtype or torch.get_autocast_dtype(_GPU)
    begin(region, device_type, dtype, *args, **options)


def _is_enabled(is_enabled: Callable[[str], bool], device_type: str = _GPU) -> bool:
    return is_enabled(_STAND_IN if device_type == _GPU else device_type)


def _dtype(dtype: Callable[[str], torch.dtype], device_type: str) -> torch.dtype:
    """That of the region; outside of any, fp16 on CUDA and bf16 on a CPU."""
    if device_type == _GPU and torch.is_autocast_enabled(_STAND_IN):
        return dtype(_STAND_IN)
    return dtype(device_type)
