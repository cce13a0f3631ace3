"""Learning from a teacher: a trained model whose outputs a smaller one is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from search.compression.params import DistillationParams, Teacher
from search.errors import InputError
from search.objective import scores

if TYPE_CHECKING:
    from search.objective import Batch, Objective
    from search.results import Params

_IGNORED = -100
"""The class of what is no prediction, as torch's cross-entropy has it."""


class Distillation:
    """The loss of a model that learns from data and from a teacher."""

    def __init__(
        self, objective: Objective, teacher: nn.Module, params: DistillationParams
    ) -> None:
        self._objective = objective
        self._params = params
        self.teacher = teacher

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean over a batch's predictions, shared between its classes and the teacher's.

        The teacher comes first: nothing of its pass is left when the model's own begins.

        Raises:
            InputError: when teacher and model tell other classes apart.
        """
        with torch.no_grad():
            theirs_NK, _ = scores(self._objective, self.teacher, batch)
        ours_NK, classes_N = scores(self._objective, model, batch)
        if ours_NK.shape != theirs_NK.shape:
            msg = (
                f"teacher: it gives scores of shape {tuple(theirs_NK.shape)}, this model "
                f"{tuple(ours_NK.shape)} for the same batch (give both the same vocabulary)"
            )
            raise InputError(msg)
        weight = self._params.distillation_weight
        hard = functional.cross_entropy(ours_NK, classes_N, ignore_index=_IGNORED)
        soft = soft_loss(
            ours_NK, theirs_NK, classes_N, temperature=self._params.distillation_temperature
        )
        return (1 - weight) * hard + weight * soft


def soft_loss(
    ours_NK: Tensor, theirs_NK: Tensor, classes_N: Tensor, *, temperature: float
) -> Tensor:
    """How far what a model says is from what its teacher says, in nats, mean over predictions.

    Both are divided by the temperature before their softmax; the result times its square, so that
    gradients stay as large as those of classes. Rows whose class is -100 do not count.

    Source: Hinton et al. 2015, arXiv 1503.02531, section 2; less the teacher's entropy, which
    has no gradient.
    """
    divergence_NK = functional.kl_div(
        functional.log_softmax(ours_NK / temperature, dim=1),
        functional.log_softmax(theirs_NK / temperature, dim=1),
        reduction="none",
        log_target=True,
    )
    counts_N = classes_N != _IGNORED
    return (divergence_NK.sum(dim=1) * counts_N).sum() / counts_N.sum() * temperature**2


def taught(params: Params) -> bool:
    """Whether a configuration learns from a teacher, where there is one."""
    return DistillationParams.of(params).distillation_weight > 0


def teacher_model(objective: Objective, teacher: Teacher, device: torch.device) -> nn.Module:
    """The teacher with its weights, in evaluation mode; random ones where it names no file.

    The file is mapped, not read: it takes no memory beside the model.

    Raises:
        InputError: when the file's weights are not those of the model.
    """
    with device:
        model = objective.model(teacher.params)
    if teacher.weights:
        state = torch.load(teacher.weights, map_location="cpu", weights_only=True, mmap=True)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            msg = f"teacher: {teacher.weights} has other weights than its configuration: {error}"
            raise InputError(msg) from error
    return model.eval().requires_grad_(requires_grad=False)
