"""What cuBLAS and cuBLASLt take of a GPU, measured in a process that has not used them yet.

By torch's own count: they ask its allocator. Left out: cuDNN, whose workspaces go with each call.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from search.memory.device import WorkspaceBytes, workspace_setting
from search.memory.elsewhere import all_measured_by

_WIDTH = 64
"""Of the matrices: what is asked for does not hang on it."""


def measured_elsewhere() -> WorkspaceBytes:
    """The workspaces of a new process on the current GPU.

    Raises:
        MachineError: when that process fails.
    """
    what = "the workspaces of the GPU's libraries"
    cublas, lt, backward = all_measured_by(__name__, what=what, count=3)
    found = WorkspaceBytes(cublas_bytes=cublas, lt_bytes=lt, backward_bytes=backward)
    return replace(found, setting=workspace_setting())


def measured_here(device: torch.device) -> WorkspaceBytes:
    """What products take for good in this process, which must not have multiplied before.

    In the main thread, first one without and then one with a bias, which cuBLASLt adds; then in
    the thread of the backward pass, whose products have none.
    """
    matrix = torch.ones(_WIDTH, _WIDTH, device=device, requires_grad=True)
    bias = torch.ones(_WIDTH, device=device)
    begin = torch.cuda.memory_allocated()
    with torch.no_grad():
        matrix @ matrix
        first = torch.cuda.memory_allocated()
        functional.linear(matrix, matrix, bias)
        second = torch.cuda.memory_allocated()
    torch.autograd.backward((matrix @ matrix).sum())
    matrix.grad = None
    torch.cuda.synchronize()
    last = torch.cuda.memory_allocated()
    return WorkspaceBytes(
        cublas_bytes=first - begin, lt_bytes=second - first, backward_bytes=last - second
    )


if __name__ == "__main__":
    found = measured_here(torch.device("cuda"))
    print(found.cublas_bytes, found.lt_bytes, found.backward_bytes)  # noqa: T201 - the answer
