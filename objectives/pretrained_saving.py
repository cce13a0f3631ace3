"""Trained models as others load them: a folder for `from_pretrained`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from objectives.pretrained_source import Source

_OF_TOKENIZERS = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt")


def save_pretrained(model: nn.Module, source: Source, folder: Path) -> None:
    """Writes a model and the tokenizer of its folder.

    Of adapters to the weights of a folder only they are written, with the place of that folder; to
    random weights nobody else has, they are added first, which changes the model.
    """
    from peft import PeftModel

    saved: Any = model
    if isinstance(model, PeftModel):
        if source.folder is None:
            saved = model.merge_and_unload()
            saved.save_pretrained(folder)
        else:
            model.peft_config["default"].base_model_name_or_path = str(source.folder)
            model.save_pretrained(str(folder), save_embedding_layers=False)
    else:
        saved.save_pretrained(folder)
    if source.folder is not None:
        for pattern in _OF_TOKENIZERS:
            for file in source.folder.glob(pattern):
                shutil.copy2(file, folder / file.name)
