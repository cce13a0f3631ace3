"""The workspaces of cuBLAS and cuBLASLt: asked for once by each thread, then kept for good."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from search.memory.cuda_device import Architecture
from search.memory.device import WorkspaceBytes
from search.memory.target import Call, Inside

_aten = torch.ops.aten
_PRODUCTS = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten._addmm_activation.default,  # noqa: SLF001
    _aten.bmm.default,
    _aten.baddbmm.default,
    _aten.mv.default,
    _aten.addmv.default,
    _aten.dot.default,
    _aten.vdot.default,
}
_MATRICES = {
    _aten.mm.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.bmm.default: (0, 1),
    _aten.baddbmm.default: (1, 2),
}
"""Which arguments of a product are matrices, or batches of them."""
_SMALL_WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
_LARGE_WORKSPACE_BYTES = 32 * 2**20
_CONFIGURED = re.compile(r":([0-9]+):([0-9]+)")


def cublas_workspace_bytes(architecture: Architecture) -> int:
    """Bytes of one handle's workspace: 8,519,680, or 32 MiB on Hopper and Blackwell.

    `CUBLAS_WORKSPACE_CONFIG`, such as `:4096:8`, overrides it: sizes in KiB and how many of each.

    Source: torch's `aten/src/ATen/cuda/CublasHandlePool.cpp`, parseChosenWorkspaceSize, in the
    version whose functions `ATen/cuda/CUDAContextLight.h` of torch 2.13 declares.
    """
    blocks = _CONFIGURED.findall(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if blocks:
        return sum(int(size) * 1024 * int(count) for size, count in blocks)
    large = architecture[0] in (9, 10, 12)
    return _LARGE_WORKSPACE_BYTES if large else _SMALL_WORKSPACE_BYTES


def lt_workspace_bytes() -> int:
    """Bytes of cuBLASLt's own workspace: 0, since it shares that of cuBLAS.

    With `TORCH_CUBLASLT_UNIFIED_WORKSPACE=0` it has its own: 1 MiB, or `CUBLASLT_WORKSPACE_SIZE`
    KiB.

    Source: the same file, unified_cublas_and_lt_workspaces and parseCUDABlasLtWorkspaceSize.
    """
    if os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") != "0":
        return 0
    return int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", "1024")) * 1024


def is_product(operator: Any) -> bool:
    """Whether an operator multiplies matrices or vectors, for which a workspace is needed."""
    return operator in _PRODUCTS


class Workspaces:
    """The workspaces of one process, each asked for once by each thread.

    A handle belongs to a thread: the main one, and the one that runs the backward pass.
    """

    def __init__(self, architecture: Architecture, measured: WorkspaceBytes | None = None) -> None:
        """None is there yet. Their sizes are those of the table, but for what was `measured`."""
        self._sizes = measured or _tabled(architecture)
        self._cublas_threads: set[bool] = set()
        self._lt_threads: set[bool] = set()

    def clear(self) -> None:
        """Forgets that any was asked for: a new process."""
        self._cublas_threads.clear()
        self._lt_threads.clear()

    def inside(self, call: Call) -> Iterator[Inside]:
        """What a product of matrices asks for: copies of inputs, then a workspace, the first time.

        Source: torch's `aten/src/ATen/native/cuda/Blas.cpp`, addmm_out_cuda_impl.
        """
        if not is_product(call.operator) or not call.result.numel():
            return
        for index in _MATRICES.get(call.operator, ()):
            if not _is_readable(call.args[index]):
                yield Inside(call.args[index].numel() * call.args[index].itemsize)
        if call.in_backward not in self._cublas_threads:
            self._cublas_threads.add(call.in_backward)
            sizes = self._sizes
            asked = sizes.backward_bytes if call.in_backward else sizes.cublas_bytes
            if asked:
                yield Inside(asked, stays=True)
        if _takes_lt(call) and call.in_backward not in self._lt_threads:
            self._lt_threads.add(call.in_backward)
            if self._sizes.lt_bytes:
                yield Inside(self._sizes.lt_bytes, stays=True)


def _tabled(architecture: Architecture) -> WorkspaceBytes:
    num_bytes = cublas_workspace_bytes(architecture)
    return WorkspaceBytes(
        cublas_bytes=num_bytes, lt_bytes=lt_workspace_bytes(), backward_bytes=num_bytes
    )


def _is_readable(matrix: Tensor) -> bool:
    """Whether cuBLAS can read a matrix, or a batch, where it lies, as it is or transposed.

    Source: `Blas.cpp`, prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas.
    """
    (rows, columns), (down, right) = matrix.shape[-2:], matrix.stride()[-2:]
    by_columns = down == 1 and right >= max(1, rows)
    by_rows = right == 1 and down >= max(1, columns)
    return by_columns or by_rows or matrix.numel() == 0 or 1 in matrix.shape


def _takes_lt(call: Call) -> bool:
    """Whether cuBLASLt adds the bias in the same kernel.

    Source: `Blas.cpp`, isInputCompliesAddmmCudaLt.
    """
    if call.operator is not _aten.addmm.default or call.kwargs.get("beta", 1) != 1:
        return False
    bias, _, weight = call.args[:3]
    return (
        os.environ.get("DISABLE_ADDMM_CUDA_LT") != "1"
        and bias.dim() == 1
        and bias.is_contiguous()
        and min(weight.shape) > 1
    )
