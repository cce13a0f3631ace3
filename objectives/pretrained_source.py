"""What a model of transformers is made of: a folder with weights, or a config alone.

Nothing is downloaded, and no code of a folder is run. Left out: quantized weights, and models that
only their own code can build.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.errors import InputError, MachineError
from search.quiet import quiet_torchao

_CONFIG = "config.json"
_HASHED_BYTES = 2**20
"""Of each file of weights: the names and places of its tensors stand at its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The values of a model's config, and the folder of its weights; None for random ones."""

    values: Mapping[str, Any]
    folder: Path | None
    provenance: Mapping[str, str]


def open_source(model: str | None, config: Mapping[str, Any] | str | None) -> Source:
    """What a model is made of.

    Args:
        model: a folder as `save_pretrained` writes it.
        config: values of a config with its `model_type`, or the path of a `config.json`.

    Raises:
        InputError: when there is no such folder or config, or both are given, or neither.
        MachineError: when transformers or peft is not installed.
    """
    _require_installed()
    if (model is None) == (config is None):
        both = "one of model and config must be given, found " + ("both" if model else "neither")
        msg = f"{both} (model: a folder with weights; config: for random ones)"
        raise InputError(msg)
    if model is not None:
        return _folder_source(Path(model).expanduser())
    values = (
        _read_config(Path(config).expanduser()) if isinstance(config, str) else dict(config or {})
    )
    _require_known_values(values)
    return Source(
        values=values,
        folder=None,
        provenance={"config": _digest(json.dumps(values, sort_keys=True).encode())},
    )


def _require_installed() -> None:
    try:
        with quiet_torchao():
            import peft  # noqa: F401 - here, so that no trial is charged for it
            import transformers  # noqa: F401
    except ImportError as error:
        msg = f"{error.name} is not installed (pip install 'paretune[hf]')"
        raise MachineError(msg) from error


def _folder_source(folder: Path) -> Source:
    if not folder.is_dir():
        msg = (
            f"{folder}: there is no such folder in {Path.cwd()}, and nothing is downloaded "
            f"(fetch it first: hf download {folder} --local-dir FOLDER, and name that folder)"
        )
        raise InputError(msg)
    values = _read_config(folder / _CONFIG)
    if "quantization_config" in values:
        msg = f"{folder}: its weights are quantized, which cannot be trained (name another folder)"
        raise InputError(msg)
    _model_type(values, folder / _CONFIG)
    return Source(
        values=values,
        folder=folder.resolve(),
        provenance={"model": str(folder), "model_sha256": _weights_digest(folder)},
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror} (name a config.json of transformers)"
        raise InputError(msg) from error
    except ValueError as error:
        msg = f"{path}: is not JSON: {error} (name a config.json of transformers)"
        raise InputError(msg) from error
    if not isinstance(values, dict):
        msg = f"{path}: must be an object, found {type(values).__name__}"
        raise InputError(msg)
    return values


def _model_type(values: Mapping[str, Any], place: object) -> str:
    from transformers import CONFIG_MAPPING

    found = values.get("model_type")
    if found in CONFIG_MAPPING:
        return str(found)
    near = difflib.get_close_matches(str(found), list(CONFIG_MAPPING), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "such as gpt2, llama or bert"
    msg = f"{place}: model_type must be one that transformers knows, found {found!r} ({hint})"
    raise InputError(msg)


def _require_known_values(values: Mapping[str, Any]) -> None:
    """Refuses names that the config would silently keep and no model would read."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[_model_type(values, "config")]
    known = {*kind().to_dict(), *kind.attribute_map, "num_labels"}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            msg = f"config: {values['model_type']} has no {name!r}{hint}"
            raise InputError(msg)


def _weights_digest(folder: Path) -> str:
    """A hash of the config, and of name, size and beginning of each file of weights."""
    files = [folder / _CONFIG, *folder.glob("*.safetensors"), *folder.glob("*.bin")]
    parts = []
    for file in sorted(files):
        with file.open("rb") as stream:
            head = hashlib.sha256(stream.read(_HASHED_BYTES)).hexdigest()
        parts.append(f"{file.name} {file.stat().st_size} {head}")
    return _digest("\n".join(parts).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
