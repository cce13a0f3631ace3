"""Four loops that train the same: bare torch, paretune's step, two libraries' Trainers.

Each takes a `Job` and its batches and gives back the loss of every step, unread. All build the
model from the same seed, take the objective's own loss, AdamW as torch has it, paretune's schedule
of the learning rate, clip gradients at the same norm, and keep gradients to None.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from search.training import TrainingRun, learning_rate_factor

if TYPE_CHECKING:
    from search.objective import Batch, Objective
    from search.results import Params

_LEARNING_RATE = 1e-3
_WEIGHT_DECAY = 0.01
_CLIP_NORM = 1.0
_WARM_UP = 0.05
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every loop trains: sizes of the model and batch, the precision, how many steps."""

    objective: Objective
    params: Params
    num_steps: int
    device: torch.device

    @property
    def all_params(self) -> dict[str, Any]:
        """The configuration with all that the four must agree on written out."""
        return {
            **self.params,
            "micro_batch_size": "equal",
            "learning_rate": _LEARNING_RATE,
            "weight_decay": _WEIGHT_DECAY,
            "clip_norm": _CLIP_NORM,
            "warmup_fraction": _WARM_UP,
            "seed": _SEED,
        }

    @property
    def num_tokens(self) -> int:
        """Of all steps together."""
        per_sample = self.objective.tokens_per_sample(self.params)
        return self.num_steps * int(self.params["batch_size"]) * per_sample

    @property
    def in_bf16(self) -> bool:
        """Whether products are computed in bf16 beside fp32 weights."""
        return self.params["precision"] == "bf16-mixed"

    def new_model(self) -> nn.Module:
        """The model on the device, its weights from the seed."""
        torch.manual_seed(_SEED)
        with self.device:
            return self.objective.model(self.all_params)

    def new_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW, torch choosing its implementation."""
        return torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)

    def factor(self, step: int) -> float:
        """On the learning rate, for a step counted from 0."""
        return learning_rate_factor(step / self.num_steps, (step + 1) / self.num_steps, _WARM_UP)


Losses = list[Tensor]
Loop = Callable[[Job, "Iterator[Batch]"], Losses]


def bare(job: Job, batches: Iterator[Batch]) -> Losses:
    """As one writes it by hand."""
    model = job.new_model()
    optimizer = job.new_optimizer(model)
    losses = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * job.factor(step)
        moved = {name: tensor.to(job.device) for name, tensor in batch.items()}
        with torch.autocast(job.device.type, torch.bfloat16) if job.in_bf16 else nullcontext():
            loss = job.objective.loss(model, moved)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def paretune(job: Job, batches: Iterator[Batch]) -> Losses:
    """The step that a sweep and a production run take."""
    run = TrainingRun(
        job.objective,
        job.all_params,
        num_tokens=job.num_tokens,
        device=job.device,
        batches=batches,
    )
    losses = []
    while not run.done:
        losses.append(run.step().loss)
    return losses


def lightning(job: Job, batches: Iterator[Batch]) -> Losses:
    """Lightning's Trainer, `barebones`: no logger, checkpoints, bar, summary or sanity check."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        """The objective as Lightning wants it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = job.new_model()
            self.losses: Losses = []

        def training_step(self, batch: Batch, _: int) -> Tensor:
            loss = job.objective.loss(self.net, batch)
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Mapping[str, Any]:
            optimizer = job.new_optimizer(self.net)
            schedule = {"scheduler": LambdaLR(optimizer, job.factor), "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": schedule}

    module = Module()
    with _quiet("lightning.pytorch"):
        trainer = pl.Trainer(
            barebones=True,
            accelerator="gpu" if job.device.type == "cuda" else "cpu",
            devices=1,
            precision=job.params["precision"],
            gradient_clip_val=_CLIP_NORM,
            max_steps=job.num_steps,
            max_epochs=1,
        )
        trainer.fit(module, _Once(batches))
    return module.losses


def hugging_face(job: Job, batches: Iterator[Batch]) -> Losses:
    """The Trainer of transformers without logs, checkpoints, bars, reports or checks of losses."""
    import transformers

    losses: Losses = []

    class Trainer(transformers.Trainer):
        """The objective's loss and data in the places that the class offers for them."""

        def compute_loss(self, model: nn.Module, inputs: Batch, **_: Any) -> Tensor:
            loss = job.objective.loss(model, inputs)
            losses.append(loss.detach())
            return loss

        def get_train_dataloader(self) -> _Once:
            return _Once(batches)

    model = job.new_model()
    optimizer = job.new_optimizer(model)
    with _quiet("transformers"), tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=folder,
                max_steps=job.num_steps,
                per_device_train_batch_size=int(job.params["batch_size"]),
                max_grad_norm=_CLIP_NORM,
                bf16=job.in_bf16,
                use_cpu=job.device.type == "cpu",
                seed=_SEED,
                report_to=[],
                logging_strategy="no",
                logging_nan_inf_filter=False,  # which waits for the device in every step
                save_strategy="no",
                disable_tqdm=True,
                remove_unused_columns=False,
            ),
            optimizers=(optimizer, LambdaLR(optimizer, job.factor)),
            train_dataset=[None],  # asked for, and not read
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return losses


class _Once:
    """Batches as a loader that can be read once."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return self._batches


class _quiet(warnings.catch_warnings):  # noqa: N801 - read as a verb
    """No advice of a library on the screen or in its log."""

    def __init__(self, library: str) -> None:
        super().__init__(action="ignore")
        self._log = logging.getLogger(library)

    def __enter__(self) -> None:
        super().__enter__()
        self._level = self._log.level
        self._log.setLevel(logging.ERROR)

    def __exit__(self, *exception: object) -> None:
        self._log.setLevel(self._level)
        super().__exit__(*exception)


LOOPS: Mapping[str, Loop] = {
    "bare loop": bare,
    "paretune": paretune,
    "Lightning": lightning,
    "Hugging Face": hugging_face,
}
