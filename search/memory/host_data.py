"""Tensors made from numbers of the host, on the very device they were asked for.

torch makes them on the CPU and moves them only where the device is of another kind, so `cpu:0`
would be forgotten. Source: torch's `torch/csrc/utils/tensor_new.cpp`, internal_new_from_data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NEW = Tensor.new_tensor
_MAKERS = {torch.tensor, torch.as_tensor, torch.asarray, _NEW}


class HostData(TorchFunctionMode):
    """While inside, `torch.tensor` and its like keep the index of a device they are given."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What the function gives, moved where its device says."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in _MAKERS:
            return result
        beside = args[0].device if func is _NEW else None
        return _placed(result, kwargs.get("device", beside))


def _placed(tensor: Tensor, device: torch.device | str | int | None) -> Tensor:
    if device is None or torch.device(device) in (tensor.device, torch.device("cpu")):
        return tensor
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
