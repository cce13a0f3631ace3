"""Optimizers and gradient clipping take the kernels they would take on CUDA."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils

_CAPTURABLE = "_get_capturable_supported_devices"
_DEVICES = "_get_foreach_kernels_supported_devices"
_TYPES = "_foreach_supported_types"


@contextmanager
def installed_optimizers() -> Iterator[None]:
    """While inside, the stand-in counts as a device with foreach kernels and graphs.

    So the foreach form is taken where neither another form nor `foreach=False` is asked for, and
    `capturable=True` keeps its counters on the device.

    Source: torch's `torch/optim/optimizer.py`, _default_to_fused_or_foreach, and
    `torch/utils/_foreach_utils.py`.
    """
    with ExitStack() as stack:
        for module in (optimizer, _foreach_utils):
            known = [*getattr(module, _TYPES), FakeTensor]
            stack.enter_context(mock.patch.object(module, _TYPES, known))
            stack.enter_context(mock.patch.object(module, _DEVICES, _supported_devices))
        for module in _optimizers():
            stack.enter_context(mock.patch.object(module, _CAPTURABLE, _supported_devices))
        yield


def _supported_devices(*, supports_xla: bool = False) -> list[str]:  # noqa: ARG001 - as it is called
    return ["cuda", "cpu"]


def _optimizers() -> list[ModuleType]:
    """Every module that has imported the question which devices capture graphs."""
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.optim")]
    return [module for module in modules if hasattr(module, _CAPTURABLE)]
