"""The workspace of cuDNN's convolutions: stated, since cuDNN chooses its kernel by its own lights.

With tensor cores cuDNN wants channels last. Tensors with channels first are laid out anew in the
workspace, the result too; that is the size stated. It may be none, or as much again, and four times
as much where `torch.backends.cudnn.benchmark` lets cuDNN try its kernels.

Source: torch's `aten/src/ATen/native/cudnn/Conv_v8.cpp`, which takes the workspace of the chosen
plan from torch's allocator for the call; NVIDIA's cuDNN documentation, "Tensor Core Operations" and
its layouts; the kernels nchwToNhwc and nhwcToNchw in profiles. Not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from search.memory.cuda_device import Architecture
from search.memory.target import Call, Freed, Inside, Returned, Unsure

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def convolution_forward(call: Call, architecture: Architecture) -> Iterator[Inside | Unsure]:
    """Of input, weights and result."""
    source, weight, groups = call.args[0], call.args[1], call.args[8]
    yield from _workspace([source, weight, call.result], architecture, groups=groups)


def convolution_backward(
    call: Call, architecture: Architecture
) -> Iterator[Inside | Freed | Returned | Unsure]:
    """Of the two kernels that follow each other: gradient of the input, then of the weights."""
    grad, source, weight, groups = *call.args[:3], call.args[9]
    grad_source, grad_weight = call.result[:2]
    kernels = ([grad, weight, grad_source], [source, grad, grad_weight])
    for index, tensors in enumerate(kernels):
        if tensors[-1] is not None:
            yield Returned(index)
            steps = list(_workspace(tensors, architecture, groups=groups))
            yield from steps
            yield Freed(tuple(step for step in steps if isinstance(step, Inside)))


def _workspace(
    tensors: list[Tensor], architecture: Architecture, *, groups: int
) -> Iterator[Inside | Unsure]:
    num_bytes = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
    stated = 0
    if _uses_tensor_cores(tensors[0], architecture) and groups == 1 and not _channels_last(tensors):
        stated = num_bytes
        yield Inside(num_bytes)
    times = 4 if torch.backends.cudnn.benchmark else 1
    yield Unsure(stated, times * num_bytes)


def _uses_tensor_cores(tensor: Tensor, architecture: Architecture) -> bool:
    if tensor.itemsize == 2:
        return architecture >= (7, 0)
    settings: Any = torch.backends.cudnn
    takes_tf32 = settings.conv.fp32_precision != "ieee"
    return tensor.dtype is torch.float32 and architecture >= (8, 0) and takes_tf32


def _channels_last(tensors: list[Tensor]) -> bool:
    """Whether any of them lies so: cuDNN then takes all so.

    Source: torch's `aten/src/ATen/native/ConvUtils.h`, cudnn_conv_suggest_memory_format.
    """
    return any(
        tensor.is_contiguous(memory_format=_CHANNELS_LAST[tensor.dim()])
        and not tensor.is_contiguous()
        for tensor in tensors[:2]
        if tensor.dim() in _CHANNELS_LAST
    )
