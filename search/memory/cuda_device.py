"""What kernels ask of a GPU beside its memory: known from its compute capability."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

STAND_IN = torch.device("cpu", 0)
"""Where the tensors of a GPU lie while it is traced for; those of the host lie on `cpu`."""

Architecture = tuple[int, int]
"""A compute capability, such as (8, 0) for an A100."""

_MULTIPROCESSORS: Mapping[Architecture, int] = {
    (7, 0): 80,
    (7, 5): 40,
    (8, 0): 108,
    (8, 6): 84,
    (8, 9): 142,
    (9, 0): 132,
    (10, 0): 148,
    (12, 0): 188,
}
_USUAL_MULTIPROCESSORS = 108


def multiprocessors(architecture: Architecture) -> int:
    """Streaming multiprocessors of the largest GPU sold for training with an architecture.

    They decide how some kernels divide their work. Smaller GPUs have fewer.

    Source: NVIDIA's architecture whitepapers: V100, T4, A100, A40, L40, H100 SXM, B200, RTX PRO
    6000.
    """
    return _MULTIPROCESSORS.get(architecture, _USUAL_MULTIPROCESSORS)


def threads_per_multiprocessor(architecture: Architecture) -> int:
    """Threads that a streaming multiprocessor runs at once.

    Source: CUDA C++ Programming Guide, technical specifications per compute capability.
    """
    return {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536}.get(
        architecture, 2048
    )


def has_much_shared_memory(architecture: Architecture) -> bool:
    """Whether a block of threads may use more than 160 KiB of shared memory.

    Source: CUDA C++ Programming Guide, technical specifications per compute capability.
    """
    return architecture in {(8, 0), (8, 7)} or architecture[0] in (9, 10)


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor lies on the stand-in."""
    return isinstance(tensor, FakeTensor) and tensor._fake_device == STAND_IN  # noqa: SLF001 - the property is slow
