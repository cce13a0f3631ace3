"""Streams and events as code that copies beside the computation uses them, on the stand-in.

A stream takes no memory of the device, and copies between it and pinned memory of the host go
without a buffer there. Source: pytorch's `aten/src/ATen/native/cuda/Copy.cu`, copy_kernel_cuda.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from unittest import mock

import torch

_OFFLOAD = "torchao.optim.cpu_offload"


class _Stream:
    """All work is done when it is asked for, so there is nothing to wait for."""

    def wait_stream(self, _: _Stream) -> None:
        """Returns at once."""

    def synchronize(self) -> None:
        """Returns at once."""

    def record_event(self) -> _Stream:
        """Something that can be waited for."""
        return self


@contextmanager
def installed_streams() -> Iterator[None]:
    """While inside, there is a GPU with streams for who asks torch or torchao's offloading."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.cuda, "Stream", _Stream))
        stack.enter_context(mock.patch.object(torch.cuda, "current_stream", _Stream))
        stack.enter_context(mock.patch.object(torch.cuda, "stream", _entered))
        if (offload := sys.modules.get(_OFFLOAD)) is not None:
            stack.enter_context(mock.patch.object(offload, "get_available_devices", _devices))
        yield


def _entered(_: _Stream) -> AbstractContextManager[None]:
    return nullcontext()


def _devices() -> list[str]:
    return ["cpu", "cuda"]
