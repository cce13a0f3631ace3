"""What of compression a model does not allow, told before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from search.compression.channels import require_hidden
from search.compression.distillation import Distillation
from search.compression.flow import flow_of
from search.compression.params import (
    DistillationParams,
    Quantization,
    Teacher,
    of_one_sample,
)
from search.compression.quantization import linear_layers, missing, require_linear
from search.compression.stored import without_weights
from search.compression.weights import require_weights
from search.errors import InputError
from search.objective import Split

if TYPE_CHECKING:
    from search.objective import Objective
    from search.results import Params, ParamValue


def refusal(objective: Objective, params: Params, name: str, value: ParamValue) -> str:
    """Why a configuration's model cannot be compressed so; empty where it can, as far as known.

    The model is made without weights; one that cannot be is told by its trials alone.

    Args:
        objective: whose model it is.
        params: a whole configuration.
        name: a dimension of compression.
        value: one of its values.
    """
    if not value or value == Quantization.NONE:
        return ""
    if name == "quantization" and (lacking := missing()):
        return lacking
    check = _CHECKS.get(name)
    try:
        if check is not None:
            check(objective, params)
    except InputError as error:
        return str(error).removeprefix(f"{name}: ")
    except Exception:  # noqa: BLE001 - a user's model may need real numbers
        return ""
    return ""


def teaching_refusal(objective: Objective, params: Params, teacher: Teacher) -> str:
    """Why a configuration's model cannot learn from a teacher; empty where it can, as far as known.

    Both are made without weights.
    """
    alone = of_one_sample(params)
    try:
        with torch.device("meta"):
            model, batch = objective.model(alone), objective.batch(alone, Split.TRAIN)
            taught_by = objective.model(teacher.params)
            Distillation(objective, taught_by, DistillationParams()).loss(model, batch)
    except InputError as error:
        return str(error).removeprefix("teacher: ")
    except RuntimeError as error:
        return f"it cannot take what this model takes: {str(error).splitlines()[0]}"
    except Exception:  # noqa: BLE001 - a user's model may need real numbers
        return ""
    return ""


def _check_channels(objective: Objective, params: Params) -> None:
    alone = of_one_sample(params)
    with torch.device("meta"):
        model, batch = objective.model(alone).eval(), objective.batch(alone, Split.TRAIN)
        require_hidden(flow_of(model, lambda: objective.loss(model, batch)))


def _check_weights(objective: Objective, params: Params) -> None:
    require_weights(without_weights(objective, params))


def _check_linear(objective: Objective, params: Params) -> None:
    require_linear(linear_layers(without_weights(objective, params)))


_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "pruned_channels": _check_channels,
    "pruned_weights": _check_weights,
    "quantization": _check_linear,
}
