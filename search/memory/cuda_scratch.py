"""What CUDA's kernels and libraries ask of the allocator beside an operator's results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from search.memory.target import Call, Inside

_aten = torch.ops.aten
_MATRIX_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
_AMPERE_WORKSPACE_BYTES = 8_519_680
_HOPPER_WORKSPACE_BYTES = 32 * 2**20


class Workspaces:
    """The workspaces of one process, each asked for once by each thread."""

    def __init__(self, architecture: tuple[int, int]) -> None:
        self._cublas_bytes = (
            _HOPPER_WORKSPACE_BYTES if architecture[0] == 9 else _AMPERE_WORKSPACE_BYTES
        )
        self._threads: set[bool] = set()

    def clear(self) -> None:
        self._threads.clear()

    def inside(self, call: Call) -> Iterator[Inside]:
        if call.operator in _MATRIX_PRODUCTS and call.in_backward not in self._threads:
            self._threads.add(call.in_backward)
            yield Inside(self._cublas_bytes, stays=True)
        if call.operator is _aten._softmax_backward_data.default:
            yield Inside(call.result.numel() * call.result.itemsize)
        if call.operator is _aten.embedding_dense_backward.default:
            yield from _embedding_backward(*call.args)


def _embedding_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, by_freq: bool
) -> Iterator[Inside]:
    n = indices.numel()
    if n <= 3072 and not by_freq:
        return
    d = grad.shape[-1]
    segments = min(n, num_weights)
    partial = n // 10 + segments
    for count in (n, n, n, segments, segments, partial):
        yield Inside(count * 8)
    yield Inside(partial * d * 4)
