"""Recurrent layers through cuDNN: what they return, keep for the backward pass and need inside.

Sizes of buffers are stated, since cuDNN alone knows them. Left out: packed sequences, which are
traced as the CPU runs them, and the generator states of dropout, below 3 MiB.

Source: torch's `aten/src/ATen/native/cudnn/RNN.cpp`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from search.memory.cuda_device import Architecture
from search.memory.target import Call, Inside, Unsure

_aten = torch.ops.aten
_RELU, _TANH, _LSTM, _GRU = range(4)
_NUM_GATES = {_RELU: 1, _TANH: 1, _LSTM: 4, _GRU: 3}


def _layers(  # noqa: PLR0917 - the operator's own form
    mode: int,
    x: Tensor,
    states: Any,
    weights: list[Tensor],
    has_biases: bool,  # noqa: FBT001 - the same
    num_layers: int,
    dropout: float,
    train: bool,  # noqa: FBT001 - the same
    bidirectional: bool,  # noqa: FBT001 - the same
    batch_first: bool,  # noqa: FBT001 - the same
) -> tuple[Tensor, ...]:
    """Source: `RNN.cpp`, _cudnn_impl. The weights count as one flat buffer, as torch keeps them."""
    hidden, cell = states if mode == _LSTM else (states, None)
    width = (hidden if cell is None else cell).shape[2]
    projected = hidden.shape[2] if hidden.shape[2] != width else 0
    per_layer = (4 if has_biases else 2) + bool(projected)
    results = _aten._cudnn_rnn(  # noqa: SLF001
        x,
        weights,
        per_layer,
        None,
        hidden,
        cell,
        mode,
        width,
        projected,
        num_layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        [],
        None,
    )
    return tuple(results[: 3 if mode == _LSTM else 2])


KERNELS: Mapping[str, Callable[..., Any]] = {
    "lstm.input": functools.partial(_layers, _LSTM),
    "gru.input": functools.partial(_layers, _GRU),
    "rnn_tanh.input": functools.partial(_layers, _TANH),
    "rnn_relu.input": functools.partial(_layers, _RELU),
}
"""What runs where autograd would look at a recurrent layer."""


def _forward(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Results, last states, and the reserve that the backward pass reads."""
    hidden, cell = args[3:5]
    batch_first, train = args[9], args[11]
    length, batch = x.shape[:2] if not batch_first else (x.shape[1], x.shape[0])
    out = x.new_empty((length, batch, hidden.shape[2] * (2 if args[12] else 1)))
    reserve_bytes = _reserve_bytes(x, *args) if train else 0
    return (
        out.transpose(0, 1) if batch_first else out,
        torch.empty_like(hidden),
        x.new_empty(0) if cell is None else torch.empty_like(cell),
        x.new_empty(reserve_bytes, dtype=torch.uint8),
        x.new_empty(0),
    )


def _reserve_bytes(x: Tensor, *args: Any) -> int:
    """Bytes kept: at each step every gate, the state and the result; what dropout let through."""
    mode, width, num_layers, dropout = args[5], args[6], args[8], args[10]
    directions = 2 if args[12] else 1
    step: int = math.prod(x.shape[:2]) * width * directions * x.itemsize
    kept: int = num_layers * (_NUM_GATES[mode] + 2) + (num_layers - 1 if dropout else 0)
    return step * kept


def _backward(x: Tensor, weights: list[Tensor], *args: Any) -> tuple[Any, ...]:
    """Gradients of inputs and states, and of all weights in one flat buffer."""
    hidden, cell = args[2:4]
    flat = x.new_empty(sum(weight.numel() for weight in weights))
    pieces = torch.split(flat, [weight.numel() for weight in weights])
    grads = [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]
    states = [None if state is None else torch.empty_like(state) for state in (hidden, cell)]
    return torch.empty_like(x), *states, grads


RESULTS: Mapping[Any, Callable[..., Any]] = {
    _aten._cudnn_rnn.default: _forward,  # noqa: SLF001
    _aten._cudnn_rnn_backward.default: _backward,  # noqa: SLF001
}


def forward_scratch(call: Call, _: Architecture) -> Iterator[Inside | Unsure]:
    """A copy of the input with steps first, and the gates of a layer before they are applied."""
    x, mode, width, batch_first = *call.args[:1], *call.args[6:8], call.args[10]
    if batch_first:
        yield Inside(x.numel() * x.itemsize)
    yield from _workspace(x, mode, width)
    reserve = call.result[3].numel()
    yield Unsure(reserve // 2, reserve, adds_up=True)


def backward_scratch(call: Call, _: Architecture) -> Iterator[Inside | Unsure]:
    """The same, in the other direction."""
    x, mode, width = call.args[0], *call.args[10:12]
    yield from _workspace(x, mode, width)


def _workspace(x: Tensor, mode: int, width: int) -> Iterator[Inside | Unsure]:
    num_bytes = math.prod(x.shape[:2]) * width * _NUM_GATES[mode] * x.itemsize
    yield Inside(num_bytes)
    yield Unsure(num_bytes, 2 * num_bytes)
