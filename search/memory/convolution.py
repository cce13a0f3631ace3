"""What a convolution needs inside, on a CPU, beside its inputs and results.

Where torch hands it to oneDNN, plain tensors are laid out anew with their channels in blocks, and
the result is laid out plainly again. Where torch computes by itself, each place of the kernel is
copied to a matrix of columns. Which of the two is torch's own answer; which layout oneDNN takes
follows the rules of its kernels for x86. Left out: transposed convolutions, and oneDNN's sums over
several threads, both not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from search.memory.reductions import sum_bytes

_Backend: Any = torch._C._ConvBackend  # type: ignore[attr-defined]  # noqa: SLF001 - asked as torch's own fake tensors ask it
_COLUMNS = (_Backend.Slow2d, _Backend.Slow3d)
_TRANSPOSED = 3
_KEPT_PLAIN_CHANNELS = 3
"""The one number of input channels that backward kernels read as they are: a picture's colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """What goes in and out. `output_shape` is known beforehand only where it is not transposed."""

    source: Tensor
    weight: Tensor
    output_shape: tuple[int, ...]
    groups: int
    backend: Any
    pointwise: bool

    @property
    def output_bytes(self) -> int:
        return math.prod(self.output_shape) * self.source.itemsize

    @property
    def channels_last(self) -> bool:
        """Whether one of the two is: then oneDNN takes both as they are.

        Source: torch's `aten/src/ATen/native/ConvUtils.h`, mkldnn_conv_use_channels_last.
        """
        formats = (suggest_memory_format(self.source), suggest_memory_format(self.weight))
        return any(kind is not torch.contiguous_format for kind in formats)

    @property
    def copies_bytes(self) -> int:
        """Inputs in the common memory format, where they were in another."""
        last = torch.channels_last if self.source.dim() == 4 else torch.channels_last_3d
        kind = last if self.channels_last else torch.contiguous_format
        inputs = (self.source, self.weight)
        return sum(one.nbytes for one in inputs if not one.is_contiguous(memory_format=kind))


def convolution_bytes(args: tuple[Any, ...]) -> int:
    """Bytes that are there only while `aten.convolution` runs, given its arguments."""
    source, weight, _, *how, groups = args
    if how[_TRANSPOSED]:
        return 0
    found = _convolution(source, weight, how, groups)
    if found.backend == _Backend.Mkldnn:
        return _onednn_forward_bytes(found)
    if found.backend in _COLUMNS:
        return _columns_bytes(found)
    return 0


def convolution_backward_bytes(args: tuple[Any, ...]) -> int:
    """Bytes that are there only while `aten.convolution_backward` runs, given its arguments."""
    gradient, source, weight, _, *how, groups, wanted = args
    if how[_TRANSPOSED]:
        return 0
    found = _convolution(source, weight, how, groups)
    copy_bytes = 0 if gradient.is_contiguous() or found.channels_last else gradient.nbytes
    if found.backend == _Backend.Mkldnn:
        return copy_bytes + _onednn_backward_bytes(found, wanted)
    if found.backend in _COLUMNS:
        return copy_bytes + _columns_backward_bytes(found, gradient, wanted)
    return copy_bytes


def _convolution(source: Tensor, weight: Tensor, how: Sequence[Any], groups: int) -> _Convolution:
    """`how` is stride, padding, dilation, whether transposed, and the output's padding."""
    stride, padding, dilation = how[:3]
    backend = torch._C._select_conv_backend(  # noqa: SLF001 - as above
        source, weight, None, *how, groups, None
    )
    kernel = weight.shape[2:]
    places = zip(source.shape[2:], kernel, *map(_spread, (stride, padding, dilation)), strict=False)
    spatial = (
        (size + 2 * pad - wide * (taps - 1) - 1) // step + 1
        for size, taps, step, pad, wide in places
    )
    return _Convolution(
        source=source,
        weight=weight,
        output_shape=(source.shape[0], weight.shape[0], *spatial),
        groups=groups,
        backend=backend,
        pointwise=all(size == 1 for size in kernel),
    )


def _spread(numbers: Sequence[int]) -> Sequence[int]:
    """One number stands for all dimensions."""
    return [*numbers] * 3 if len(numbers) == 1 else numbers


def _onednn_forward_bytes(found: _Convolution) -> int:
    """The blocked source, weights and result; then that result beside the plain one.

    Source: torch's `aten/src/ATen/native/mkldnn/Conv.cpp`, the note on memory formats; ideep's
    `include/ideep/operators/conv.hpp`, do_compute.
    """
    weight_bytes = _blocked_weight_bytes(found)
    if found.channels_last:
        return found.copies_bytes + weight_bytes
    plain = not found.pointwise and found.groups == 1 and found.source.shape[1] < _block()
    source_bytes = 0 if plain else _reordered_bytes(found, found.source.shape)
    result_bytes = _blocked_bytes(found, found.output_shape)
    computing = source_bytes + weight_bytes + result_bytes - found.output_bytes
    return found.copies_bytes + max(computing, result_bytes)


def _onednn_backward_bytes(found: _Convolution, wanted: Sequence[bool]) -> int:
    """Gradient of the source first, then that of the weights beside it; each blocked, then plain.

    Source: as above, mkldnn_convolution_backward.
    """
    weight_bytes = _blocked_weight_bytes(found)
    if found.channels_last:
        return found.copies_bytes + weight_bytes
    gradient_bytes = _reordered_bytes(found, found.output_shape)
    source_bytes = _blocked_bytes(found, found.source.shape)
    results_bytes, highest = 0, 0
    if wanted[0]:
        results_bytes = found.source.numel() * found.source.itemsize
        highest = source_bytes + max(gradient_bytes + weight_bytes, results_bytes)
    if wanted[1]:
        plain = not found.pointwise and found.source.shape[1] == _KEPT_PLAIN_CHANNELS
        read_bytes = 0 if plain else _reordered_bytes(found, found.source.shape)
        weights = read_bytes + gradient_bytes + weight_bytes
        highest = max(highest, results_bytes + weights)
        results_bytes += found.weight.nbytes
    return found.copies_bytes + max(0, highest - results_bytes)


def _block() -> int:
    """Channels in a block: the fp32 numbers of one vector register.

    Source: oneDNN's `src/cpu/x64/jit_avx2_conv_kernel_f32.cpp`, simd_w, and
    `jit_avx512_common_conv_kernel.cpp`, simd_w. Of AVX2 each rule here was checked against oneDNN's
    own account (ONEDNN_VERBOSE=1); of AVX-512 none was.
    """
    return 16 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 8


def _blocked_bytes(found: _Convolution, shape: Sequence[int]) -> int:
    """A tensor whose channels fill whole blocks; of several groups none is filled up."""
    channels = shape[1]
    if found.groups == 1:
        channels = _filled(channels)
    return shape[0] * channels * math.prod(shape[2:]) * found.source.itemsize


def _reordered_bytes(found: _Convolution, shape: Sequence[int]) -> int:
    """The same where there are blocks at all; groups that fill none are left as they are.

    Source: oneDNN's `src/cpu/gemm_convolution.cpp`, which takes what no blocked kernel takes.
    """
    sizes = (found.weight.shape[1], found.weight.shape[0] // found.groups)
    whole = all(size % _block() == 0 for size in sizes)
    depthwise = sizes == (1, 1)
    return _blocked_bytes(found, shape) if found.groups == 1 or whole or depthwise else 0


def _blocked_weight_bytes(found: _Convolution) -> int:
    outputs, inputs = found.weight.shape[:2]
    taps = math.prod(found.weight.shape[2:])
    return _filled(outputs) * _filled(inputs) * taps * found.weight.itemsize


def _filled(channels: int) -> int:
    return -(-channels // _block()) * _block()


def _columns_bytes(found: _Convolution) -> int:
    """All samples' columns at once, or one group's beside what all groups gave.

    A pointwise kernel that takes every place reads the source as it is.

    Source: torch's `aten/src/ATen/native/ConvolutionMM2d.cpp`, compute_columns2d;
    `NaiveConvolutionTranspose3d.cpp`'s sibling `ConvolutionMM3d.cpp`; groups in `Convolution.cpp`.
    """
    spatial = found.output_shape[2:]
    as_it_is = found.pointwise and spatial == tuple(found.source.shape[2:])
    taps = math.prod(found.weight.shape[1:])
    places = found.output_shape[0] * math.prod(spatial)
    columns = 0 if as_it_is else places * taps * found.source.itemsize
    if found.groups == 1:
        return columns
    return max(found.output_bytes, columns + found.source.nbytes // found.groups)


def _columns_backward_bytes(found: _Convolution, gradient: Tensor, wanted: Sequence[bool]) -> int:
    """The columns again for the gradient of the weights, or what the bias's sum needs.

    Source: the same file, slow_conv2d_backward_cpu, which does one after the other.
    """
    every_but_channels = (0, *range(2, gradient.dim()))
    bias_bytes = sum_bytes(gradient, every_but_channels) if wanted[2] else 0
    return max(bias_bytes, _columns_bytes(found) if wanted[1] else 0)
