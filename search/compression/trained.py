"""What a production run leaves: weights, what they are, and the way back to a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from search import home
from search.compression.params import CompressionParams, Teacher
from search.errors import InputError
from search.objective import load_objective
from search.results import Params

if TYPE_CHECKING:
    import torch
    from torch import nn

    from search.objective import Objective

DESCRIPTION = "model.json"
WEIGHTS = "model.pt"
COMPRESSED = "compressed.pt"
"""The files of a folder: what it holds, the weights as trained, and those that are deployed."""
_FORMAT = 1
_LATEST_PICK = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the weights in a folder are.

    `objective` is the path of its class, `data` its settings and `provenance` what they led to.
    `origin` names the sweep and the trial that the configuration was picked from, where it was.
    """

    objective: str
    data: Mapping[str, Any]
    provenance: Mapping[str, Any]
    params: Params
    num_tokens: int
    weights_sha256: str
    compressed: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    paretune: int = _FORMAT

    def write(self, folder: Path) -> None:
        """Describes a folder that has the weights."""
        text = json.dumps(asdict(self), indent=2, default=str)
        home.write_atomically(folder / DESCRIPTION, text)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What a folder holds. Raises InputError when that cannot be told."""
        try:
            return cls(**json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            msg = f"{folder} holds no trained model ({error}): name a folder of paretune train"
            raise InputError(msg) from error


def path_of(objective: Objective) -> str:
    """The dotted path of an objective's class."""
    kind = type(objective)
    return f"{kind.__module__}:{kind.__qualname__}"


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def load_trained(folder: str | Path, *, device: str | torch.device = "cpu") -> nn.Module:
    """The model that a production run left: the compressed one where there is one.

    In evaluation mode, as it was judged: the same outputs for the same inputs.

    Args:
        folder: of the run, such as `.paretune/trained/PICK`.
        device: where it is to lie.

    Raises:
        InputError: when the folder holds no trained model.
    """
    import torch

    from search.compression.stored import load_model

    folder = Path(folder)
    trained = Trained.read(folder)
    objective = load_objective(trained.objective)(**trained.data)
    file = folder / (COMPRESSED if trained.compressed else WEIGHTS)
    left_out = {} if trained.compressed else asdict(CompressionParams())
    params = {**trained.params, **left_out}
    return load_model(objective, params, file, torch.device(device))


def find_teacher(named: str, objective: Objective) -> Teacher:
    """The trained pick of a name, for a model of an objective to learn from.

    Args:
        named: a sweep, whose latest pick is meant; `SWEEP/LABEL`; or the folder of a run.
        objective: what the model is of.

    Raises:
        InputError: when there is no such pick, when it was not trained yet, or on other data.
    """
    folder = _folder(named)
    trained = Trained.read(folder)
    _require_same(trained, objective)
    return Teacher(
        name=f"{named}, weights {trained.weights_sha256[:12]}",
        params=trained.params,
        weights=str((folder / WEIGHTS).absolute()),
    )


def _folder(named: str) -> Path:
    is_path = named.startswith(("/", "."))  # the name of a sweep starts with neither
    if is_path or (Path(named) / DESCRIPTION).is_file():
        return Path(named)
    name, _, label = named.partition("/")
    sweep = home.open_home(name)
    pick, sweep_id = sweep.load_pick(label or _LATEST_PICK), sweep.manifest().sweep_id
    found = [
        folder
        for folder in _trained_folders()
        if Trained.read(folder).origin == {"sweep_id": sweep_id, "trial": pick["trial"]}
    ]
    if found:
        return max(found, key=lambda folder: (folder / DESCRIPTION).stat().st_mtime)
    chosen = f" --as {label}" if label else ""
    msg = (
        f"the pick of {named!r}, trial {pick['trial']}, was not trained yet (run: paretune export "
        f"{name}{chosen} -o PICK.yaml, then paretune train PICK.yaml)"
    )
    raise InputError(msg)


def _trained_folders() -> Iterator[Path]:
    return (file.parent for file in (home.home() / "trained").glob(f"*/{DESCRIPTION}"))


def _require_same(trained: Trained, objective: Objective) -> None:
    """The same objective on the same data: else words mean others, or it has seen what judges."""
    if trained.objective != path_of(objective):
        msg = f"it is of {trained.objective}, this sweep of {path_of(objective)}"
        raise InputError(msg)
    ours = json.loads(json.dumps(dict(objective.provenance), default=str))
    differing = [name for name in ours if trained.provenance.get(name) != ours[name]]
    if differing:
        msg = (
            f"it was trained on other data than this sweep ({', '.join(differing)} differ), so it "
            "may have seen what models are judged on (give both the same 'data')"
        )
        raise InputError(msg)
