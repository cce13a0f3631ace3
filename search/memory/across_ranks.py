"""A run of several processes traced as rank 0 of them, with nobody at the other end.

The process group is torch's own fake one. What it leaves open is filled in here: the answer that
waits for a collective, and the memory that gloo takes for one on a CPU. What torch asks of shapes
alone, where tensors are spread over ranks, is not booked.

Left out: the buffers that NCCL allocates outside of torch's allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from search.memory.events import Part
from search.memory.target import Call, Cpu, Freed, Inside, Returned, Target, Unsure

if TYPE_CHECKING:
    from search.memory.recorder import Recorder

_c10d = torch.ops.c10d
_ALL_REDUCE = _c10d.allreduce_.default
_ALL_GATHER = _c10d._allgather_base_.default
_REDUCE_SCATTER = _c10d._reduce_scatter_base_.default
_BROADCAST = _c10d.broadcast_.default
_EMPTY = torch.ops.aten.empty.memory_format
_COPY = torch.ops.aten.copy_.default
_SEGMENT_BYTES = 1024 * 1024
"""Of a message, what gloo reduces at a time.

Source: gloo's `gloo/allreduce.h`, kMaxSegmentSize.
"""


class AcrossRanks:
    """A target on which collectives end at once, and take what they take there."""

    def __init__(self, target: Target, world_size: int) -> None:
        """Stands for `target`, where `world_size` of its kind work together."""
        self._target = target
        self._world_size = world_size

    @property
    def device(self) -> torch.device:
        """As without others."""
        return self._target.device

    def holds(self, tensor: Tensor) -> bool:
        """As without others."""
        return self._target.holds(tensor)

    @property
    def uncertain(self) -> tuple[Unsure, ...]:
        """As without others."""
        return self._target.uncertain

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While inside, this process is rank 0 of a group of which there is no other.

        Raises:
            RuntimeError: when it is one of several already.
        """
        if distributed.is_initialized():
            msg = "a process that trains with others cannot trace a run of several"
            raise RuntimeError(msg)
        distributed.init_process_group(
            "fake", store=FakeStore(), rank=0, world_size=self._world_size
        )
        try:
            with self._target.installed():
                yield
        finally:
            distributed.destroy_process_group()

    def replacement(self, operator: Any) -> Callable[..., Any] | None:
        """A collective that has ended when it returns; its results are where they were."""
        return _ENDED.get(operator) or self._target.replacement(operator)

    def inside(self, call: Call) -> Iterable[Inside | Freed | Returned]:
        """What gloo allocates for a collective on a CPU; NCCL asks torch for nothing."""
        if call.operator not in _ENDED:
            yield from self._target.inside(call)
        elif isinstance(self._target, Cpu):
            yield from (Inside(size) for size in _gloo_bytes(call, self._world_size) if size)


def _gloo_bytes(call: Call, world_size: int) -> Iterator[int]:
    """Blocks that gloo holds while a collective runs.

    A reduce-scatter is an all-reduce of a copy. Gathers and broadcasts go straight into place.

    Source: torch's `torch/csrc/distributed/c10d/ProcessGroupGloo.cpp`,
    reduce_scatter_tensor_coalesced.
    """
    if call.operator is _REDUCE_SCATTER:
        yield call.args[1].nbytes
        yield _ring_bytes(call.args[1].nbytes, world_size)
    elif call.operator is _ALL_REDUCE:
        yield from (_ring_bytes(tensor.nbytes, world_size) for tensor in call.args[0])


def _ring_bytes(num_bytes: int, world_size: int) -> int:
    """The two segments that an all-reduce receives in turn.

    Source: gloo's `gloo/allreduce.cc`, ring.
    """
    num_segments = max(-(-num_bytes // _SEGMENT_BYTES), 2 * world_size)
    num_segments = -(-num_segments // world_size) * world_size
    return 2 * -(-num_bytes // num_segments)


def _ended(tensors: Any) -> Any:
    """What waits for a collective that has ended; DDP reads the tensors from it."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future).boxed()


def _in_place(tensors: list[Tensor], *_: Any, **__: Any) -> Any:
    return tensors, _ended(tensors)


def _into_output(output: Tensor, *_: Any, **__: Any) -> Any:
    return output, _ended([output])


_ENDED: Mapping[Any, Callable[..., Any]] = {
    _ALL_REDUCE: _in_place,
    _BROADCAST: _in_place,
    _ALL_GATHER: _into_output,
    _REDUCE_SCATTER: _into_output,
}


class Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes on what is done to this rank's own tensors, and nothing of the others'."""

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        """Hears nothing until it is entered, after the recorder; `device` is the rank's own."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._makes_buckets = False
        self._patches: tuple[Any, ...] = (
            mock.patch.object(
                ShardingPropagator, "_propagate_tensor_meta_non_cached", _unheard(_propagation)
            ),
            mock.patch.object(device_mesh, "init_device_mesh", _unheard(_new_mesh)),
            mock.patch.object(  # a mesh knows kinds of devices, and what stands for a GPU has none
                import_module("torch.distributed.fsdp._fully_shard._fully_shard"),
                "_get_device_from_mesh",
                return_value=device,
            ),
            *(
                mock.patch.object(_fsdp_param, name, self._noting_size(name))
                for name in ("alloc_storage", "free_storage")
            ),
            *(
                mock.patch.object(DistributedDataParallel, name, self._noting_buckets(name))
                for name in ("__init__", "_pre_forward")
            ),
        )

    def __enter__(self) -> Self:
        """Listens from now on."""
        for patch in self._patches:
            patch.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Leaves torch as it was."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for patch in reversed(self._patches):
            patch.stop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """A tensor spread over ranks does its part on the local one, which comes here again."""
        if DTensor in types:
            return NotImplemented
        kwargs = kwargs or {}
        if self._makes_buckets and _is_of_indices(func, args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._makes_buckets and func is _EMPTY:
            self._recorder.assign(Part.GRADIENTS, [result])
        elif (exchanged := _EXCHANGED.get(str(func))) is not None:
            part, tensors = exchanged
            self._recorder.assign(part, tensors(args, kwargs))
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, as for the recorder."""
        return False

    def _noting_buckets(self, name: str) -> Callable[..., Any]:
        """A method of DDP in which nothing is allocated but buckets of gradients."""
        before: Callable[..., Any] = getattr(DistributedDataParallel, name)

        @wraps(before)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._makes_buckets = True
            try:
                return before(*args, **kwargs)
            finally:
                self._makes_buckets = False

        return noting

    def _noting_size(self, name: str) -> Callable[[Tensor], None]:
        """A function of FSDP that gives a gathered parameter its room, or takes it back."""
        before: Callable[[Tensor], None] = getattr(_fsdp_param, name)

        @wraps(before)
        def noting(tensor: Tensor) -> None:
            before(tensor)
            self._recorder.resized(tensor)

        return noting


_Exchanged = tuple[Part, Callable[[tuple[Any, ...], dict[str, Any]], Iterable[Any]]]
_EXCHANGED: Mapping[str, _Exchanged] = {
    "fsdp.all_gather_copy_in.default": (Part.GATHERED, lambda args, _: args[1:2]),
    "fsdp.split_with_sizes_copy.default": (Part.GATHERED, lambda _, kwargs: kwargs["out"]),
    "fsdp.chunk_cat.default": (Part.GRADIENTS, lambda _, kwargs: [kwargs["out"]]),
    str(_REDUCE_SCATTER): (Part.GRADIENTS, lambda args, _: args[:1]),
}
"""What the buffers of sharded training are for, where operators write them.

Source: torch's `torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`.
"""


def _is_of_indices(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether DDP writes down which parameter goes into which bucket: numbers it reads again.

    They are few, and real, so that the buckets are those of the run.

    Source: torch's `torch/csrc/distributed/c10d/reducer.cpp`, sync_bucket_indices.
    """
    if func is _EMPTY:
        return kwargs.get("dtype") is torch.int32
    return func is _COPY and not any(isinstance(tensor, FakeTensor) for tensor in args[:2])


_propagation = ShardingPropagator._propagate_tensor_meta_non_cached  # noqa: SLF001
_new_mesh = device_mesh.init_device_mesh


def _unheard(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, outside of what is traced.

    The shapes of whole tensors are worked out on fakes of them that no rank holds, and the ranks of
    a mesh are numbers that it reads.

    Source: torch's `torch/distributed/tensor/_sharding_prop.py` and `device_mesh.py`.
    """

    @wraps(function)
    def unheard(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return unheard
