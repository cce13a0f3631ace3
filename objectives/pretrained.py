"""Models of Hugging Face's transformers, built of what `objectives.pretrained_source` opens."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from search.errors import InputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from objectives.pretrained_source import Source

_MARKS = ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id")
_POSITIONS_AFTER_PADDING = frozenset(
    {
        "roberta",
        "camembert",
        "xlm-roberta",
        "xlm-roberta-xl",
        "roberta-prelayernorm",
        "data2vec-text",
    }
)
"""Number positions from after that of padding. Source: transformers' `models/roberta/
modeling_roberta.py`, create_position_ids_from_input_ids, which the others copy."""
_MOST_MISSING = 0.5
"""Share of a classifier's weights that a folder may lack; its own layers are always new."""


class Task(StrEnum):
    """What a model is to give: the next token of each position, or a class of a text."""

    CAUSAL_LM = "CAUSAL_LM"
    SEQ_CLS = "SEQ_CLS"


def new_config(source: Source, task: Task, changes: Mapping[str, Any]) -> PretrainedConfig:
    """The config of a model, some of its values changed.

    Raises:
        InputError: when transformers has no model of this type for the task.
    """
    from transformers import CONFIG_MAPPING

    values = {**source.values, **changes, "use_cache": False}
    if "layer_types" in values and "num_hidden_layers" in changes:
        values["layer_types"] = values["layer_types"][: changes["num_hidden_layers"]]
    config = CONFIG_MAPPING[source.values["model_type"]].from_dict(values)
    if type(config) not in _auto_class(task)._model_mapping:  # noqa: SLF001 - transformers asks it so
        what = "causal language model" if task is Task.CAUSAL_LM else "sequence classifier"
        msg = f"model_type {config.model_type} has no {what} in transformers (take another type)"
        raise InputError(msg)
    if task is Task.SEQ_CLS and config.is_encoder_decoder:
        msg = f"model_type {config.model_type} has an encoder and a decoder (take one of the two)"
        raise InputError(msg)
    for name in _MARKS:
        mark = getattr(config, name, None)
        if isinstance(mark, int) and mark >= config.vocab_size:
            setattr(config, name, None)
    config.is_decoder = task is Task.CAUSAL_LM  # or BERT and its like would see what comes next
    if hasattr(config, "reference_compile"):
        config.reference_compile = False
    return config


def dropouts(source: Source) -> tuple[str, ...]:
    """The names under which such a config has its dropouts, those that are numbers."""
    from transformers import CONFIG_MAPPING

    values = CONFIG_MAPPING[source.values["model_type"]].from_dict(dict(source.values)).to_dict()
    return tuple(
        name
        for name, value in values.items()
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop"))
    )


def num_positions(config: PretrainedConfig) -> int | None:
    """The most tokens of a text that a model was made for; None where the config does not say."""
    most: int | None = getattr(config, "max_position_embeddings", None)
    if most is None:
        return None
    counts_from_padding = config.model_type in _POSITIONS_AFTER_PADDING
    return most - (config.pad_token_id or 0) - 1 if counts_from_padding else most


def require_packable(config: PretrainedConfig) -> None:
    """Returns when a causal model lets itself be told which positions see each other.

    Raises:
        InputError: when it does not, or also keeps to windows of its own.
    """
    kind = _auto_class(Task.CAUSAL_LM)._model_mapping[type(config)]  # noqa: SLF001 - as above
    told = hasattr(sys.modules[kind.__module__], "create_causal_mask")
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if not told or slides:
        why = "attends within windows of its own" if told else "makes its mask of attention itself"
        msg = f"samples packed: {config.model_type} {why} (take windows or padded)"
        raise InputError(msg)


def _auto_class(task: Task) -> Any:
    import transformers

    if task is Task.CAUSAL_LM:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForSequenceClassification


def new_model(
    source: Source, task: Task, config: PretrainedConfig, *, dtype: torch.dtype, attention: str
) -> PreTrainedModel:
    """A model on the current default device, with the folder's weights where there is one.

    On fake tensors there are no values to read.

    Raises:
        InputError: when the model has no such attention.
    """
    from transformers.modeling_utils import no_init_weights

    random = nullcontext() if source.folder is None else no_init_weights()
    with random:
        model = _built(task, config, dtype, attention)
    _keep_constants(model)
    if source.folder is not None and _has_values(next(model.parameters())):
        model.load_state_dict(_weights(source.folder, task, config).state_dict())
    return model


def _has_values(param: nn.Parameter) -> bool:
    return not isinstance(param, FakeTensor) and param.device.type != "meta"


def _built(task: Task, config: PretrainedConfig, dtype: torch.dtype, attention: str) -> Any:
    try:
        return _auto_class(task).from_config(config, dtype=dtype, attn_implementation=attention)
    except ValueError as error:
        if attention not in str(error) and "attn_implementation" not in str(error):
            raise
        msg = (
            f"attention {attention}: {config.model_type} has none in transformers (set it to eager)"
        )
        raise InputError(msg) from error


def _keep_constants(model: nn.Module) -> None:
    """Marks what is computed and not trained, such as the angles of positions: it stays fp32."""
    kept = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if name not in kept:
            buffer.keeps_precision = True  # type: ignore[attr-defined]


def _weights(folder: Path, task: Task, config: PretrainedConfig) -> PreTrainedModel:
    """The model of a folder on the CPU, its weights mapped into memory and not read yet.

    Raises:
        InputError: when the folder lacks weights.
    """
    with torch.device("cpu"), _quiet():
        model, info = _auto_class(task).from_pretrained(
            folder,
            config=config,
            dtype="auto",
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    missing = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
    most = 0 if task is Task.CAUSAL_LM else _MOST_MISSING * len(model.state_dict())
    if len(missing) > most:
        msg = (
            f"{folder}: has no fitting weights for {missing[0]!r} and {len(missing) - 1} others of "
            f"{type(model).__name__} (name a folder of such a model)"
        )
        raise InputError(msg)
    return model


def require_weights(source: Source, task: Task, config: PretrainedConfig) -> None:
    """Returns when the folder, if there is one, has the weights of such a model.

    Raises:
        InputError: naming what it lacks.
    """
    if source.folder is None:
        return
    try:
        _weights(source.folder, task, config)
    except OSError as error:
        msg = f"{source.folder}: {error}"
        raise InputError(msg) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """That the layers of a task are new, which transformers warns of, is what is wanted."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
