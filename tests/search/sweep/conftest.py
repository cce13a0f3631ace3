"""A small objective under the path `toys:Toy`, and sweep files about it."""

# ruff: noqa: ARG002 - the arguments are the contract's

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from search.errors import FileFaultsError, InputError
from search.metric import Goal, Metric
from search.sweep.file import LoadedSweep, parse_sweep

sys.path.append(str(Path(__file__).parent))  # so that tests import what lies beside them
CAPACITY_BYTES = 24 * 1024**3

_FIELDS = {
    "name": "toy",
    "objective": "toys:Toy",
    "space": "{width: [8, 16], learning_rate: {low: 1e-4, high: 1e-2, log: true}}",
    "trial": "{tokens: 60_000}",
    "objectives": "{error: min, tokens_per_second: max}",
    "trials": "3",
}


class Activation(StrEnum):
    RELU = "relu"
    GELU = "gelu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyParams:
    sequence_length: int = 16
    width: int = 8
    heads: int = 2
    dropout: float = 0.0
    activation: Activation = Activation.RELU
    tied: bool = False

    def __post_init__(self):
        if not 0 <= self.dropout < 1:
            msg = f"dropout must be from 0 to below 1, found {self.dropout}"
            raise ValueError(msg)
        if self.heads < 1 or self.width % self.heads:
            msg = f"width {self.width} must be a multiple of heads ({self.heads})"
            raise ValueError(msg)


class Toy:
    metrics: ClassVar = (Metric(name="error", goal=Goal.MIN), Metric(name="score", goal=Goal.MAX))
    parameters: ClassVar = ToyParams
    provenance: ClassVar = {"corpus": "none"}

    def __init__(self, corpus: str = "words", num_tokens_there: int = 1000):
        if corpus == "nowhere.txt":
            msg = f"{corpus!r} does not exist"
            raise InputError(msg)
        self.num_tokens_there = num_tokens_there

    def data(self, params, split, *, seed, num_tokens=None):
        if self.num_tokens_there < params["sequence_length"]:
            msg = (
                f"the corpus has {self.num_tokens_there} tokens, too few for a window of "
                f"{params['sequence_length']}"
            )
            raise InputError(msg)
        yield {}

    def tokens_per_sample(self, params):
        return params["sequence_length"]

    model = batch = num_tokens = loss = evaluate = None


class Picky(Toy):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class parameters:  # noqa: N801 - the contract's name
        depth: int

    def __init__(self, *, vocabulary: str):
        super().__init__(vocabulary)

    def tokens_per_sample(self, params):
        return 1

    def data(self, params, split, *, seed, num_tokens=None):
        return iter(())


class NoDataclass(Toy):
    parameters: ClassVar = dict


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    module = ModuleType("toys")
    module.__dict__.update(Toy=Toy, Picky=Picky, NoDataclass=NoDataclass)
    monkeypatch.setitem(sys.modules, "toys", module)


@pytest.fixture
def text() -> Callable[..., str]:
    """A sweep file about the toy, some fields replaced by other YAML, or left out where None."""

    def written(**fields: str | None) -> str:
        chosen = {**_FIELDS, **fields}
        return "\n".join(f"{name}: {yaml}" for name, yaml in chosen.items() if yaml is not None)

    return written


@pytest.fixture
def load(text) -> Callable[..., LoadedSweep]:
    def loaded(**fields: str | None) -> LoadedSweep:
        return parse_sweep(text(**fields), path="toy.yaml", capacity_bytes=CAPACITY_BYTES)

    return loaded


@pytest.fixture
def faults(load) -> Callable[..., list[str]]:
    """The faults that are told of a sweep file."""

    def told(**fields: str | None) -> list[str]:
        with pytest.raises(FileFaultsError) as caught:
            load(**fields)
        return [str(fault) for fault in caught.value.faults]

    return told
