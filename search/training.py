"""The one training step, which the memory tracer and the worker both drive.

Longer than most modules: whatever decides a step's tensors is in one place, so that what is
predicted is what runs. Left out: its dimensions, see `search.training_params`.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from search.checkpointing import checkpoint
from search.compression.distillation import Distillation, taught, teacher_model
from search.compression.params import DistillationParams, Teacher
from search.errors import InputError
from search.loading import made_by_workers
from search.objective import Split
from search.optimizers import (
    new_optimizer,
    set_learning_rate,
)
from search.parallel import Share, States, next_share, together
from search.prefetching import prefetched
from search.training_params import Precision, TrainingParams

if TYPE_CHECKING:
    from search.objective import Batch, Objective
    from search.results import Params

    _GetState = Callable[[], Tensor]
    _SetState = Callable[[Tensor], None]


_RANK_SEED = 1_000_003
"""Keeps the seeds of ranks apart from those of other trials, which differ by little."""


def learning_rate_factor(before: float, after: float, warmup_fraction: float) -> float:
    """The factor on the learning rate for a step: linear warm-up, then cosine to 0.

    Args:
        before: share of the trial's tokens trained on before the step, 0 to 1.
        after: the same after it, so that the first step already learns.
        warmup_fraction: share of the tokens spent warming up.

    Source: Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5, without restarts.
    """
    if after < warmup_fraction:
        return after / warmup_fraction
    progress = max(0.0, (before - warmup_fraction) / (1 - warmup_fraction))
    return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimizer step: the mean loss over its tokens, a scalar tensor, and their number."""

    loss: Tensor
    num_tokens: int


class TrainingRun:
    """One configuration in training, from a new model to its evaluation.

    Deterministic on one device for a given `seed`, which it gives to the global generators: one
    run at a time. Left out: the time limit, the memory budget and what a failure means, which are
    the caller's.
    """

    def __init__(
        self,
        objective: Objective,
        params: Params,
        *,
        num_tokens: int,
        device: torch.device,
        batches: Iterator[Batch] | None = None,
        held_out: Iterable[Batch] | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """Builds model and optimizer on `device`.

        Args:
            objective: what to train.
            params: one configuration, `micro_batch_size` resolved.
            num_tokens: what the whole run trains on.
            device: where the tensors live.
            batches: micro-batches to train on; default: the objective's own.
            held_out: batches to evaluate on; default: the objective's own.
            teacher: whom it learns from, where its `distillation_weight` is above 0.
        """
        self.objective = objective
        self.params = params
        self.training = TrainingParams.of(params)
        self.num_tokens = num_tokens
        self.device = device
        self.tokens_seen = 0
        self.overflow_steps = 0
        self._held_out = held_out
        _use_matmul_precision(self.training.precision, device)
        if self.training.optimizer_offload and _is_host(device):
            warnings.warn("optimizer_offload changes nothing on a CPU", stacklevel=2)
        self._distillation = self._new_distillation(teacher)
        torch.manual_seed(self.training.seed)
        self.model = self._new_model()
        self._ranks = together(objective, self.model, self.training)
        self.optimizers = self._new_optimizers()
        self._scaler = torch.amp.GradScaler(
            device.type, enabled=self.training.precision is Precision.FP16_MIXED
        )
        self._batches = batches if batches is not None else self._training_data()
        if self._ranks.rank:  # from here on, as for dropout, each rank draws for itself
            torch.manual_seed(self.training.seed + _RANK_SEED * self._ranks.rank)

    def _new_model(self) -> nn.Module:
        with self.device:
            model = self.objective.model(self.params).train()
        if self.training.precision is Precision.BF16:
            _convert(model, torch.bfloat16)
        checkpoint(model, self.training.activation_checkpointing)
        return model

    def _new_distillation(self, teacher: Teacher | None) -> Distillation | None:
        if teacher is None or not taught(self.params):
            return None
        model = teacher_model(self.objective, teacher, self.device)
        if self.training.precision is Precision.BF16:
            _convert(model, torch.bfloat16)
        return Distillation(self.objective, model, DistillationParams.of(self.params))

    @property
    def teacher(self) -> nn.Module | None:
        """The model it learns from; None without one."""
        return self._distillation.teacher if self._distillation else None

    def _new_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """One over all parameters, or one for each that steps in the backward pass."""
        new = partial(
            new_optimizer,
            optimizer=self.training.optimizer,
            implementation=self.training.optimizer_implementation,
            learning_rate=self.training.learning_rate,
            weight_decay=self.training.weight_decay,
            momentum=self.training.momentum,
            offload=self.training.optimizer_offload and not _is_host(self.device),
        )
        if not self.training.step_in_backward:
            return (new(self.model.parameters()),)
        trained = [param for param in self.model.parameters() if param.requires_grad]
        optimizers = tuple(new([param]) for param in trained)
        for param, optimizer in zip(trained, optimizers, strict=True):
            step = partial(_step_of_one, weakref.ref(optimizer), self.training.zero_grad_to_none)
            param.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
        return optimizers

    def _training_data(self) -> Iterator[Batch]:
        batches = self.objective.data(
            self.params, Split.TRAIN, seed=self.training.seed, num_tokens=self.num_tokens
        )
        pinned = self._copies_apart
        made = made_by_workers(batches, workers=self.training.workers, pinned=pinned)
        return prefetched(made, depth=self.training.prefetch, pinned=pinned)

    @property
    def _copies_apart(self) -> bool:
        """Whether batches lie in pinned memory, from which a GPU copies while the host goes on."""
        made_ahead = self.training.prefetch > 0 or self.training.workers > 0
        return self.device.type == "cuda" and self.training.pin_memory and made_ahead

    @property
    def done(self) -> bool:
        """Whether the run has trained on all its tokens."""
        return self.tokens_seen >= self.num_tokens

    def step(self) -> StepResult:
        """One optimizer step over `batch_size` samples, cut into micro-batches."""
        if not self.model.training:
            self.model.train()
        shares = self._next_shares()
        step_tokens = sum(share.round_tokens for share in shares)
        self._set_learning_rate(step_tokens)
        total = reduce(torch.add, self._losses(shares, step_tokens))
        if not self.training.step_in_backward:
            self._update(*self.optimizers)
        self.tokens_seen += step_tokens
        return StepResult(loss=self._ranks.summed(total), num_tokens=step_tokens)

    def _losses(self, shares: list[Share], step_tokens: int) -> Iterator[Tensor]:
        """What each micro-batch adds to the mean loss, its backward pass done."""
        for index, share in enumerate(shares, start=1):
            weight = share.num_tokens * self._ranks.world_size / step_tokens
            with self._ranks.reducing(now=index == len(shares)):
                loss = self._backward(share.batch, weight=weight)
            yield loss

    def _next_shares(self) -> list[Share]:
        """Filled up by samples, not by count: how a step is cut must not change what is in it."""
        shares: list[Share] = []
        num_samples = 0
        while num_samples < self.training.batch_size:
            share = next_share(self._batches, self._ranks, self.objective.num_tokens)
            if share is None:
                break
            shares.append(share)
            num_samples += share.round_samples
        if not shares:
            msg = f"the data ended after {self.tokens_seen} of {self.num_tokens} tokens"
            raise InputError(msg)
        return shares

    def _backward(self, batch: Batch, *, weight: float) -> Tensor:
        with self._autocast():
            loss = self._loss(self.on_device(batch))
            if weight != 1:
                loss = loss * weight
        torch.autograd.backward(self._scaler.scale(loss))
        return loss.detach()

    def _loss(self, batch: Batch) -> Tensor:
        if self._distillation is not None:
            return self._distillation.loss(self.model, batch)
        return self._ranks.loss(self.model, batch)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        if self.training.clip_norm > 0:
            self._scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        scale_before = self._scaler.get_scale()
        self._scaler.step(optimizer)  # leaves the step out when a gradient overflowed
        self._scaler.update()
        self.overflow_steps += int(self._scaler.get_scale() < scale_before)
        optimizer.zero_grad(set_to_none=self.training.zero_grad_to_none)

    def _set_learning_rate(self, step_tokens: int) -> None:
        before = self.tokens_seen / self.num_tokens
        after = (self.tokens_seen + step_tokens) / self.num_tokens
        factor = learning_rate_factor(before, after, self.training.warmup_fraction)
        for optimizer in self.optimizers:
            set_learning_rate(optimizer, self.training.learning_rate * factor)

    def let_go(self) -> None:
        """Drops what training alone needs: the optimizers' states, gradients, the teacher."""
        self.optimizers = ()
        self._distillation = None
        self.model.zero_grad(set_to_none=True)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The model as it is evaluated: no dropout, no gradients, the precision it trained in."""
        self.model.eval()
        with torch.no_grad(), self._autocast():
            yield

    def evaluate(self) -> dict[str, float]:
        """The objective's metrics on held-out data, in the precision it trained in."""
        batches = self._held_out
        if batches is None:
            batches = self.objective.data(self.params, Split.HELD_OUT, seed=0)
        with self.serving():
            return self._ranks.evaluate(self.model, map(self.on_device, batches))

    def state_dict(self) -> dict[str, Any]:
        """Everything training goes on from, but the position in the data.

        All ranks ask for it together; rank 0 alone need have it all.
        """
        states = self._ranks.states(self.model, self.optimizers)
        generators = {name: get() for name, (get, _) in _generators(self.device).items()}
        return {
            "model": states.model,
            "optimizers": states.optimizers,
            "scaler": self._scaler.state_dict(),
            "generators": self._ranks.of_each(generators),
            "tokens_seen": self.tokens_seen,
            "overflow_steps": self.overflow_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on, in a new run, from `state_dict`: the data are read again up to where it was."""
        states = States(state["model"], state["optimizers"])
        self._ranks.load_states(self.model, self.optimizers, states)
        self._scaler.load_state_dict(state["scaler"])
        while self.tokens_seen < state["tokens_seen"]:
            self.tokens_seen += sum(share.round_tokens for share in self._next_shares())
        self.overflow_steps = state["overflow_steps"]
        for name, (_, put) in _generators(self.device).items():
            put(state["generators"][self._ranks.rank][name].cpu())

    def weights(self) -> dict[str, Tensor]:
        """The state of the whole model. All ranks ask for it together; rank 0 has it."""
        return self._ranks.states(self.model, ()).model

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0: the one that writes and tells."""
        return self._ranks.rank == 0

    def agreed(self, choice: int) -> int:
        """What rank 0 chose. All ranks ask for it together."""
        return self._ranks.agreed(choice)

    def on_device(self, batch: Batch) -> Batch:
        """The batch where the model is."""
        apart = self._copies_apart
        return {name: tensor.to(self.device, non_blocking=apart) for name, tensor in batch.items()}

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}.get(
            self.training.precision
        )
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


def _generators(device: torch.device) -> dict[str, tuple[_GetState, _SetState]]:
    """How to read and set the state of each generator that a step may draw from."""
    generators: dict[str, tuple[_GetState, _SetState]] = {
        "cpu": (torch.get_rng_state, torch.set_rng_state)
    }
    if device.type != "cpu":
        module = torch.get_device_module(device)
        generators[device.type] = (
            partial(module.get_rng_state, device),
            partial(module.set_rng_state, device=device),
        )
    return generators


def _is_host(device: torch.device) -> bool:
    """Whether it is the host's memory: a GPU that is traced for lies on `cpu:0`."""
    return device == torch.device("cpu")


def _step_of_one(
    optimizer: weakref.ref[torch.optim.Optimizer],
    to_none: bool,  # noqa: FBT001 - bound by place, before the parameter
    _: Tensor,
) -> None:
    """What a parameter does with its gradient; its hook must not own what owns the parameter.

    Python's collector does not look into the hooks of a tensor: the model would never go.
    """
    found = optimizer()
    if found is not None:
        found.step()
        found.zero_grad(set_to_none=to_none)


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    """As `model.to(dtype)`, which cannot convert the parameters of a model on fake tensors.

    Left as they are: those that an objective gave a true `keeps_precision`.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and not getattr(tensor, "keeps_precision", False):
            tensor.data = tensor.data.to(dtype)


def _use_matmul_precision(precision: Precision, device: torch.device) -> None:
    if precision is Precision.TF32 and device.type == "cpu":
        warnings.warn("precision tf32 computes in fp32 on a CPU", stacklevel=3)
        precision = Precision.FP32
    torch.set_float32_matmul_precision("high" if precision is Precision.TF32 else "highest")
