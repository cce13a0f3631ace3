"""One optimizer step that several processes take together, each on its share of the batch.

Left out: starting the processes and joining them in a process group, which is there before a run
of more than one is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from search.checkpointing import outermost_blocks
from search.errors import InputError
from search.optimizers import Optimizer

if TYPE_CHECKING:
    from search.objective import Batch, Objective
    from search.training_params import TrainingParams

    _Optimizer = torch.optim.Optimizer


class Sharding(StrEnum):
    """What each rank keeps of parameters, gradients and optimizer state: all, or its share."""

    NONE = "none"
    FULL = "full"


_SHARDED_OPTIMIZERS = (Optimizer.ADAMW, Optimizer.ADAM, Optimizer.SGD)
"""They update each number by itself, so that a share of them can be updated alone."""


def refusals(training: TrainingParams) -> Iterator[str]:
    """Why a step cannot be taken by so many processes together; nothing when it can."""
    size, world_size = training.batch_size, training.world_size
    if world_size < 1:
        yield "world_size must be above 0"
        return
    if size % world_size:
        yield f"world_size {world_size} does not divide batch_size {size}"
    if world_size == 1 and training.sharding is not Sharding.NONE:
        yield f"sharding {training.sharding} needs a world_size above 1 (set it to none)"
    if world_size > 1 and training.step_in_backward:
        yield (
            "step_in_backward updates before the ranks have added up their gradients "
            "(set it to false, or world_size to 1)"
        )
    if world_size > 1 and training.optimizer_offload:
        yield (
            "optimizer_offload copies gradients before the ranks have added them up "
            "(set it to false, or world_size to 1)"
        )
    if training.sharding is Sharding.FULL and training.optimizer not in _SHARDED_OPTIMIZERS:
        yield (
            f"sharding full does not go with optimizer {training.optimizer}, whose update needs "
            f"whole tensors (take {', '.join(_SHARDED_OPTIMIZERS)}, or sharding none)"
        )


class Share(NamedTuple):
    """What one rank computes of a round: as many micro-batches as there are ranks, one for each.

    `num_tokens` is 0 for a rank that a last, short round has nothing left for: it then computes
    what another does, for nothing, so that all ranks take part in every exchange.
    """

    batch: Batch
    num_tokens: int
    round_tokens: int
    round_samples: int


class States(NamedTuple):
    """What a model and each of its optimizers go on from."""

    model: dict[str, Any]
    optimizers: list[Any]


class Together(Protocol):
    """The processes of a run as one of them sees them."""

    rank: int
    world_size: int

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The objective's loss of one rank's micro-batch."""
        ...

    def reducing(self, *, now: bool) -> AbstractContextManager[object]:
        """Round the forward and backward pass of a micro-batch; `now` with the last of a step."""
        ...

    def summed(self, losses: Tensor) -> Tensor:
        """The mean over the ranks, the same on each."""
        ...

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """The objective's metrics; empty on a rank that leaves them to another."""
        ...

    def agreed(self, choice: int) -> int:
        """What rank 0 chose, on every rank."""
        ...

    def of_each(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        ...

    def states(self, model: nn.Module, optimizers: Sequence[_Optimizer]) -> States:
        """Of the whole model and its optimizers, as one process would keep them; on rank 0."""
        ...

    def load_states(
        self, model: nn.Module, optimizers: Sequence[_Optimizer], states: States
    ) -> None:
        """Goes on from `states`, which every rank has read."""
        ...


def together(objective: Objective, model: nn.Module, training: TrainingParams) -> Together:
    """How this process takes part in a run, its model made ready for that.

    Raises:
        InputError: when the processes that a run needs were not joined.
    """
    if training.world_size == 1:
        return _Alone(objective)
    joined = distributed.get_world_size() if distributed.is_initialized() else 1
    if joined != training.world_size:
        msg = f"world_size: {training.world_size} processes must be joined, found {joined}"
        raise InputError(msg)
    if training.sharding is Sharding.FULL:
        return _Sharded(objective, model)
    return _Replicated(objective, model, as_views=training.gradient_as_bucket_view)


def next_share(
    batches: Iterator[Batch], ranks: Together, num_tokens: Callable[[Batch], int]
) -> Share | None:
    """This rank's share of the next round of micro-batches; None at the end of the data."""
    own: Batch | None = None
    own_tokens = round_tokens = round_samples = 0
    for place in range(ranks.world_size):
        batch = next(batches, None)
        if batch is None:
            break
        tokens = num_tokens(batch)
        round_tokens += tokens
        round_samples += len(next(iter(batch.values())))
        if place <= ranks.rank:
            own, own_tokens = batch, tokens if place == ranks.rank else 0
    if own is None:
        return None
    return Share(own, own_tokens, round_tokens, round_samples)


class _Loss(nn.Module):
    """A whole step's forward pass as one module: what wraps it sees every use of the model."""

    def __init__(self, objective: Objective, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._objective = objective

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        return self._objective.loss(self.model, batch)

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """The metrics of held-out batches."""
        return self._objective.evaluate(self.model, batches)


class _Whole:
    """States where each process has all of them."""

    def states(self, model: nn.Module, optimizers: Sequence[_Optimizer]) -> States:
        return States(model.state_dict(), [optimizer.state_dict() for optimizer in optimizers])

    def load_states(
        self, model: nn.Module, optimizers: Sequence[_Optimizer], states: States
    ) -> None:
        model.load_state_dict(states.model)
        for optimizer, state in zip(optimizers, states.optimizers, strict=True):
            optimizer.load_state_dict(state)


class _Alone(_Whole):
    """A run of one process."""

    rank, world_size = 0, 1

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._objective.loss(model, batch)

    def reducing(self, *, now: bool) -> AbstractContextManager[object]:
        del now
        return nullcontext()

    def summed(self, losses: Tensor) -> Tensor:
        return losses

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        return self._objective.evaluate(model, batches)

    def agreed(self, choice: int) -> int:
        return choice

    def of_each(self, value: Any) -> list[Any]:
        return [value]


class _Joined:
    """What all runs of several processes share: where this one stands, and a common loss."""

    def __init__(self) -> None:
        self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()

    def summed(self, losses: Tensor) -> Tensor:
        distributed.all_reduce(losses)
        return losses / self.world_size

    def agreed(self, choice: int) -> int:
        chosen = [choice]
        distributed.broadcast_object_list(chosen)
        return chosen[0]

    def of_each(self, value: Any) -> list[Any]:
        values = [value] * self.world_size
        distributed.all_gather_object(values, value)
        return values


class _Replicated(_Joined, _Whole):
    """Data parallel: every rank keeps the whole model, and gradients are averaged in buckets.

    All ranks build the same model from the same seed, so nothing is exchanged at the start;
    buffers stay each rank's own, and those of rank 0 are the model's.
    """

    def __init__(self, objective: Objective, model: nn.Module, *, as_views: bool) -> None:
        super().__init__()
        self._objective = objective
        self._loss = DistributedDataParallel(
            _Loss(objective, model),
            init_sync=False,
            forward_sync_buffers=False,
            gradient_as_bucket_view=as_views,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        del model
        loss: Tensor = self._loss(batch)
        return loss

    def reducing(self, *, now: bool) -> AbstractContextManager[object]:
        return nullcontext() if now else self._loss.no_sync()

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        return {} if self.rank else self._objective.evaluate(model, batches)


class _Sharded(_Joined):
    """Fully sharded: each rank keeps its share, and a block is gathered while it computes.

    What lies outside the blocks is gathered together, for the whole step. Gradients are reduced
    to shares after every micro-batch: whole ones would need the memory that sharding saves.
    """

    def __init__(self, objective: Objective, model: nn.Module) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        super().__init__()
        self._loss = _Loss(objective, model)
        device = next(model.parameters()).device
        mesh = init_device_mesh(device.type, (self.world_size,))
        for block in outermost_blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(self._loss, mesh=mesh)
        register_fsdp_forward_method(self._loss, "evaluate")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        del model
        loss: Tensor = self._loss(batch)
        return loss

    def reducing(self, *, now: bool) -> AbstractContextManager[object]:
        del now
        return nullcontext()

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """All ranks together, on the same batches: none could gather the blocks alone."""
        del model
        return self._loss.evaluate(batches)

    def states(self, model: nn.Module, optimizers: Sequence[_Optimizer]) -> States:
        """Put together on the host of rank 0; the others' are empty."""
        from torch.distributed.checkpoint import state_dict as checkpoints

        options = checkpoints.StateDictOptions(full_state_dict=True, cpu_offload=True)
        return States(
            checkpoints.get_model_state_dict(model, options=options),
            [
                checkpoints.get_optimizer_state_dict(model, optimizer, options=options)
                for optimizer in optimizers
            ],
        )

    def load_states(
        self, model: nn.Module, optimizers: Sequence[_Optimizer], states: States
    ) -> None:
        from torch.distributed.checkpoint import state_dict as checkpoints

        options = checkpoints.StateDictOptions(full_state_dict=True)
        checkpoints.set_model_state_dict(model, states.model, options=options)
        for optimizer, state in zip(optimizers, states.optimizers, strict=True):
            checkpoints.set_optimizer_state_dict(model, optimizer, state, options=options)
