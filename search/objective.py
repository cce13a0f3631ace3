"""The contracts between what is trained and the search, and how one is found by its dotted path."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from search.errors import InputError
from search.metric import Metric
from search.results import Params

if TYPE_CHECKING:
    from torch import Tensor, nn

    Batch = Mapping[str, Tensor]


class Split(StrEnum):
    """Which part of the data: what is trained on, or what every trial is judged on."""

    TRAIN = "train"
    HELD_OUT = "held_out"


MEMORY_NEUTRAL: Mapping[str, bool] = {"memory_neutral": True}
"""`metadata` of those fields of an objective's `parameters` that change no tensor's size."""


class Objective(Protocol):
    """Something to train, built from the `data:` section of a sweep file as keyword arguments.

    `parameters` is a frozen dataclass whose fields are the dimensions this objective understands,
    with their types and defaults; its `__post_init__` raises ValueError on values that do not go
    together. A field with `MEMORY_NEUTRAL` as its metadata changes no tensor's size.
    `provenance` names what it trains on, a hash among it, for the record.
    A batch maps names to tensors whose first dimension counts samples.
    """

    metrics: tuple[Metric, ...]
    parameters: type
    provenance: Mapping[str, str | int]

    def model(self, params: Params) -> nn.Module:
        """A new model with random weights, on the current default device, from the global seed."""
        ...

    def batch(self, params: Params, split: Split) -> Batch:
        """A batch of zeros, shaped and typed as the largest that `data` gives for this split."""
        ...

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Micro-batches on the CPU that hold `num_tokens` tokens in all, the last ones smaller.

        Held-out data ignores `seed`, and are the same for every trial, whatever its batch size and
        sequence length. With `num_tokens` None they are given once.
        """
        ...

    def num_tokens(self, batch: Batch) -> int:
        """How many tokens (samples, where there are none) a batch trains on."""
        ...

    def tokens_per_sample(self, params: Params) -> int:
        """Tokens in one sample of a full batch; 1 where there are none."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean training loss of a batch over its tokens, a scalar."""
        ...

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """A value for each of `metrics`, of a model in evaluation mode, from held-out batches."""
        ...


def memory_neutral(objective: Objective | type[Objective]) -> frozenset[str]:
    """The dimensions of an objective that it says change no tensor's size."""
    return frozenset(
        field.name for field in fields(objective.parameters) if field.metadata.get("memory_neutral")
    )


class Padded(Protocol):
    """What an objective may offer besides, whose training batches are mostly shorter than `batch`.

    Its memory is then predicted for training on usual batches, and for one of the largest after
    them, which finds the memory that they left cut up. To be left out where `data` begins with the
    largest, and for a last batch that is smaller.
    """

    def usual_batch(self, params: Params) -> Batch:
        """A batch of zeros as most training batches are, of as many samples as `batch`."""
        ...


def usual_batch(objective: Objective, params: Params) -> Batch | None:
    """An ordinary training batch; None where all are shaped as the largest."""
    member: Callable[[Params], Batch] | None = getattr(objective, "usual_batch", None)
    return member(params) if member else None


class Scoring(Protocol):
    """What an objective may offer besides, whose loss is a cross-entropy: then it can be distilled.

    `loss` is the mean cross-entropy of what this gives.
    """

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits of each prediction, (N, K), and its class, (N,); -100 where none counts."""
        ...


def scores(objective: Objective, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """What an objective that has `scores` gives. Raises InputError for one that has not."""
    member: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]] | None = getattr(
        objective, "scores", None
    )
    if member is None:
        name = type(objective).__name__
        msg = f"teacher: {name} tells no classes apart, as it has no 'scores' (leave teacher out)"
        raise InputError(msg)
    return member(model, batch)


def example_batches(objective: Objective, params: Params) -> Iterator[Batch]:
    """A batch of every kind that is traced."""
    yield from (objective.batch(params, split) for split in Split)
    if (usual := usual_batch(objective, params)) is not None:
        yield usual


class Saved(Protocol):
    """What an objective may offer besides, whose trained models others load in a form of theirs."""

    def save(self, model: nn.Module, params: Params, folder: Path) -> None:
        """Writes a trained model to a new folder; the last thing that is done with the model."""
        ...


def saved(objective: Objective, model: nn.Module, params: Params, folder: Path) -> bool:
    """Whether the objective wrote its model to the folder; it did not where it cannot."""
    member: Callable[[nn.Module, Params, Path], None] | None = getattr(objective, "save", None)
    if member is None:
        return False
    member(model, params, folder)
    return True


TrainingFunction = Callable[[Params, Callable[..., None]], object]
"""A function `train(params, report)` that trains by itself.

It calls `report(accuracy=0.9, tokens=1000)` as often as it likes; a mapping that it returns is its
last report.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untraced:
    """What stands for a function or a command, whose steps nobody can run on fake tensors.

    `metrics` are those that the sweep file names; `named` is the function's path or the command.
    """

    named: str
    metrics: tuple[Metric, ...]
    provenance: Mapping[str, str | int]


def load_objective(path: str) -> type[Objective]:
    """The objective class named `package.module:Name`; also looked for in the working folder.

    Raises:
        InputError: naming what the module does offer.
    """
    found = _named(path)
    missing = [member for member in _members() if not hasattr(found, member)]
    if missing:
        msg = f"{path!r} is no objective: it has no {', '.join(missing)}"
        if callable(found) and not isinstance(found, type):
            msg += "; nor is it a function of two, (params, report)"
        raise InputError(msg)
    return found  # type: ignore[no-any-return]


def load_trainable(path: str) -> type[Objective] | TrainingFunction:
    """The objective class or the training function of a name, see `load_objective`.

    Raises:
        InputError: when it is neither.
    """
    found = _named(path)
    if isinstance(found, type) or not callable(found) or not _takes_two(found):
        return load_objective(path)
    return found  # type: ignore[no-any-return]


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind({}, print)
    except (TypeError, ValueError):  # it takes others, or will not tell
        return False
    return True


def _named(path: str) -> Any:
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        msg = f"{path!r} is not of the form 'package.module:Name'"
        raise InputError(msg)
    found = getattr(_module(module_name), name, None)
    if found is None:
        raise InputError(_not_offered(module_name, name))
    return found


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        msg = f"there is no module {name!r} (is it installed, or in the working folder?)"
        raise InputError(msg) from error
    except SyntaxError as error:
        place = f"{error.filename}, line {error.lineno}"
        msg = f"module {name!r} has a syntax error: {place}: {error.msg}"
        raise InputError(msg) from error


def _members() -> list[str]:
    methods = [name for name, _ in inspect.getmembers(Objective, inspect.isfunction)]
    return ["metrics", "parameters", *(name for name in methods if not name.startswith("_"))]


def _not_offered(module_name: str, name: str) -> str:
    offered = [
        candidate
        for candidate, value in vars(_module(module_name)).items()
        if inspect.isclass(value) and all(hasattr(value, member) for member in _members())
    ]
    near = difflib.get_close_matches(name, offered, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    listed = ", ".join(offered) or "no objective"
    return f"module {module_name!r} has no {name!r}{hint}; it offers {listed}"
