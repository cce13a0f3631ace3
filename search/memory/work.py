"""What an optimizer step computes and moves, operator by operator, counted in its trace.

Left out: how long that takes, see `search.memory.speed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from search.memory.target import Call

_aten = torch.ops.aten


class Arithmetic(StrEnum):
    """What a matrix product computes with, as data sheets name the peaks; none for all else."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    NONE = ""


class OperatorWork(NamedTuple):
    """One operator: its floating-point operations, and the bytes it reads and writes.

    Counted are products of matrices, convolutions and attention; the rest is bound by its bytes.
    """

    arithmetic: Arithmetic
    flops: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One steady optimizer step: what was traced of it, in order, and what repeats in it.

    `operators[repeated_from:repeated_to]` are those of the last traced micro-batch; `num_waiting`
    micro-batches more do the same.
    """

    operators: tuple[OperatorWork, ...] = ()
    repeated_from: int = 0
    repeated_to: int = 0
    num_waiting: int = 0

    def counts(self) -> Counter[OperatorWork]:
        """How often each operator runs in the whole step."""
        counts = Counter(self.operators)
        if self.num_waiting:
            repeated = Counter(self.operators[self.repeated_from : self.repeated_to])
            counts.update({each: self.num_waiting * count for each, count in repeated.items()})
        return counts

    def to_json(self) -> list[list[Any]]:
        """Plain values from which `from_json` makes a step of the same counts."""
        return [[*operator, count] for operator, count in self.counts().items()]

    @classmethod
    def from_json(cls, record: Iterable[Iterable[Any]]) -> Self:
        """A step of the counts that `to_json` wrote, its order lost.

        Raises:
            TypeError, ValueError: when it did not write that.
        """
        counts = {
            OperatorWork(Arithmetic(kind), flops, num_bytes): count
            for kind, flops, num_bytes, count in record
        }
        return cls(operators=tuple(Counter(counts).elements()))

    @property
    def flops(self) -> dict[Arithmetic, int]:
        """Floating-point operations of the whole step by what they compute with."""
        flops: Counter[Arithmetic] = Counter()
        for operator, count in self.counts().items():
            flops[operator.arithmetic] += operator.flops * count
        return {arithmetic: number for arithmetic, number in flops.items() if number}

    @property
    def num_bytes(self) -> int:
        """Bytes that the operators of the whole step read and write."""
        return sum(operator.num_bytes * count for operator, count in self.counts().items())

    @property
    def num_operators(self) -> int:
        """Operators of the whole step that compute or move anything."""
        return self.counts().total()


_FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,  # noqa: SLF001 - names of operators
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,  # noqa: SLF001
}
"""FLOPs by operator: two for each multiplication and addition; the attention of a CPU counts as
that of CUDA. A causal mask halves nothing: half of the products are not needed, but counted.

Source: torch's `torch/utils/flop_counter.py`.
"""
_CONVOLUTIONS = frozenset({_aten.convolution, _aten._convolution, _aten.convolution_backward})  # noqa: SLF001
_FREE = frozenset(
    {
        _aten._unsafe_view,  # noqa: SLF001
        _aten.empty,
        _aten.empty_like,
        _aten.empty_strided,
        _aten.new_empty,
        _aten.new_empty_strided,
        _aten.is_same_size,
        _aten.resize_,
        _aten.set_,
    }
)
"""Change or make metadata alone, and are no views by their schema."""
_OVERWRITES = frozenset(
    {
        _aten.copy_,
        _aten.fill_,
        _aten.zero_,
        _aten._foreach_copy_,
        _aten._foreach_zero_,
    }
)
"""Do not read what they write into."""
_GATHERS = frozenset(
    {
        _aten.embedding,
        _aten.gather,
        _aten.index,
        _aten.index_select,
        _aten.nll_loss_forward,
    }
)
"""Read of a table only what they pick: as many elements as there are indices or results."""


def operator_work(call: Call, holds: Callable[[Tensor], bool]) -> OperatorWork | None:
    """What one operator computes and moves; None for a view, or where nothing is on the device.

    Bytes are those of its inputs and outputs on the device, each once, whatever a cache may save.

    Args:
        call: the operator that has run.
        holds: whether a tensor lies on the device.
    """
    packet = call.operator.overloadpacket
    if call.operator.is_view or packet in _FREE:
        return None
    reads = _tensors((*call.args, *call.kwargs.values()), holds)
    written = _tensors(_written(call), holds)
    read_bytes = _read_bytes(packet, reads, written)
    num_bytes = read_bytes + sum(map(_bytes, written))
    if not num_bytes:
        return None
    formula = _FORMULAS.get(packet)
    if formula is None:
        return OperatorWork(Arithmetic.NONE, 0, num_bytes)
    flops = int(formula(*call.args, **call.kwargs, out_val=call.result))
    return OperatorWork(_arithmetic(packet, reads), flops, num_bytes)


def _tensors(value: Any, holds: Callable[[Tensor], bool]) -> list[Tensor]:
    """The tensors on the device, in order; nested as far as operators nest them."""
    if isinstance(value, Tensor):
        return [value] if holds(value) else []
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in _tensors(each, holds)]
    return []


def _written(call: Call) -> Any:
    """The results, or what is changed in place where nothing is returned, as by foreach."""
    if call.result is not None or not call.operator._schema.is_mutable:  # noqa: SLF001 - says what is written
        return call.result
    declared = zip(call.operator._schema.arguments, call.args, strict=False)  # noqa: SLF001
    return [value for argument, value in declared if argument.is_write]


def _read_bytes(packet: Any, reads: list[Tensor], written: list[Tensor]) -> int:
    if packet in _OVERWRITES:
        read = {id(tensor) for tensor in written}
        return sum(_bytes(tensor) for tensor in reads if id(tensor) not in read)
    if packet in _GATHERS:
        table, *indices = reads
        picked = max((tensor.numel() for tensor in (*indices, *_alike(written, table))), default=0)
        return picked * table.itemsize + sum(map(_bytes, indices))
    return sum(map(_bytes, reads))


def _alike(tensors: Iterable[Tensor], table: Tensor) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.dtype is table.dtype]


def _bytes(tensor: Tensor) -> int:
    """Bytes of the elements that lie apart in memory: an expanded dimension is read once."""
    num_elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            num_elements *= size
    return num_elements * tensor.itemsize


_ARITHMETIC = {
    torch.float64: Arithmetic.FP64,
    torch.float32: Arithmetic.FP32,
    torch.float16: Arithmetic.FP16,
    torch.bfloat16: Arithmetic.BF16,
    torch.float8_e4m3fn: Arithmetic.FP8,
    torch.float8_e5m2: Arithmetic.FP8,
    torch.int8: Arithmetic.INT8,
}


def _arithmetic(packet: Any, reads: list[Tensor]) -> Arithmetic:
    """What a product of these operands computes with: the type of the first of them.

    fp32 convolutions take TF32 where a GPU has it.

    Source: torch's `torch/backends/cudnn/__init__.py`, allow_tf32, which is on by default.
    """
    kinds = [_ARITHMETIC[tensor.dtype] for tensor in reads if tensor.dtype in _ARITHMETIC]
    kind = kinds[0] if kinds else Arithmetic.NONE
    return Arithmetic.TF32 if kind is Arithmetic.FP32 and packet in _CONVOLUTIONS else kind


class Tally:
    """Counts the operators of one step while it runs.

    A step is a forward and a backward pass for each micro-batch, and the update. What follows a
    backward pass begins the next part.
    """

    def __init__(self) -> None:
        self._operators: list[OperatorWork] = []
        self._part_ends: list[int] = []
        self._in_backward = False

    def add(self, call: Call, holds: Callable[[Tensor], bool]) -> None:
        """Counts one operator that has run."""
        if self._in_backward and not call.in_backward:
            self._part_ends.append(len(self._operators))
        self._in_backward = call.in_backward
        work = operator_work(call, holds)
        if work is not None:
            self._operators.append(work)

    def work(self, *, num_traced: int, num_waiting: int, tf32: bool) -> Work:
        """The work of the whole step.

        Args:
            num_traced: micro-batches that were run.
            num_waiting: micro-batches that do the same as the last of them.
            tf32: whether products of fp32 matrices are computed in TF32.
        """
        # a loss that runs a backward pass itself gives each micro-batch more parts than one
        parts = [0, *self._part_ends]
        per_micro_batch = len(self._part_ends) // num_traced
        return Work(
            operators=tuple(map(_in_tf32, self._operators) if tf32 else self._operators),
            repeated_from=parts[-1 - per_micro_batch],
            repeated_to=parts[-1],
            num_waiting=num_waiting,
        )


def _in_tf32(work: OperatorWork) -> OperatorWork:
    return work._replace(arithmetic=Arithmetic.TF32) if work.arithmetic is Arithmetic.FP32 else work
