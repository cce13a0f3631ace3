"""Peak memory of a configuration before it runs, as an interval, computed once and remembered."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from search.memory.compiled import compiler_switches
from search.memory.device import workspace_setting
from search.memory.files import cache_folder, read_json, write_json
from search.memory.machine import Machine
from search.memory.margins import Margins
from search.memory.polynomials import Integers
from search.memory.programs import Programs
from search.memory.speed import Rates, Speed, estimated_speed
from search.memory.trace import trace
from search.memory.work import Work
from search.objective import example_batches, memory_neutral
from search.results import Params, PredictedMemory
from search.training_params import TrainingParams, memory_key, micro_batch_size

if TYPE_CHECKING:
    from search.compression.params import Deployment
    from search.objective import Batch, Objective


def predict(objective: Objective, params: Params, machine: Machine) -> PredictedMemory:
    """The memory of one configuration, traced now."""
    return machine.predicted(trace(objective, params, target=machine.target()))


class Predictor:
    """Predicts for one objective; each structure is traced on this machine once, for good."""

    def __init__(
        self,
        objective: Objective,
        machine: Machine,
        cache_dir: Path | None = None,
        space: Iterable[Params] = (),
        margins: Margins | None = None,
        *,
        deployment: Deployment | None = None,
    ) -> None:
        """Opens the cache.

        Args:
            objective: what is to be trained.
            machine: where, as far as it decides the memory of a run.
            cache_dir: where traced structures are kept; default: the user's cache folder.
            space: configurations that may be asked: where they differ in batch size and length
                alone, a few traces serve them all.
            margins: what was learned of the errors here; without them the bounds are those of
                the machine's mechanism.
            deployment: what follows training, and who teaches; default: nothing and nobody.
        """
        self._objective = objective
        self._machine = machine
        self._margins = margins
        self._deployment = deployment
        self._cache_dir = cache_dir or cache_folder() / "predictions"
        self._programs = Programs(
            objective,
            space,
            self._cache_dir / "programs",
            digest=self._digest,
            target=machine.target(),
            deployment=deployment,
        )
        self._known: dict[str, PredictedMemory] = {}
        self._works: dict[str, Work] = {}

    def __call__(self, params: Params) -> PredictedMemory:
        """The prediction for a configuration whose `micro_batch_size` is resolved."""
        key = self._key(params)
        if key not in self._known:
            self._known[key] = self._kept(key) or self._traced(key, params)
        known = self._known[key]
        return self._margins.applied(known) if self._margins else known

    def _kept(self, key: str) -> PredictedMemory | None:
        try:
            return PredictedMemory(**read_json(self._cache_dir / f"{key}.json"))
        except TypeError:
            return None

    def completes(self, params: Params, capacity_bytes: int) -> bool:
        """Whether it ends well within `capacity_bytes`, if need be by giving cached memory back."""
        return self._machine.completes(self._programs.trace(params), capacity_bytes)

    def peak_bytes(self, params: Params, sizes: Integers) -> Integers:
        """The most bytes of tensors at once, of very many sizes, see `Programs.peak_bytes`."""
        return self._programs.peak_bytes(params, sizes)

    def work(self, params: Params) -> Work:
        """What one optimizer step computes and moves, for a resolved `micro_batch_size`."""
        key = self._key(params)
        if key not in self._works:
            self._keep_work(key, self._kept_work(key) or self._programs.work(params))
        return self._works[key]

    def speed(self, params: Params, rates: Rates, ratios: Iterable[float] = ()) -> Speed:
        """Estimated tokens per second on a device, see `search.memory.speed`."""
        num_tokens = TrainingParams.of(params).batch_size * self._objective.tokens_per_sample(
            params
        )
        return estimated_speed(self.work(params), rates, num_tokens=num_tokens, ratios=ratios)

    def known_speed(
        self, params: Params, rates: Rates, ratios: Iterable[float] = ()
    ) -> Speed | None:
        """As `speed`; None where that would take a trace, and of what ranks exchange."""
        if TrainingParams.of(params).world_size > 1:
            return None
        key = self._key(params)
        if key not in self._works and (kept := self._kept_work(key)) is not None:
            self._works[key] = kept
        return self.speed(params, rates, ratios) if key in self._works else None

    def with_margins(self, margins: Margins) -> Predictor:
        """One that shares all that was traced, for another device that takes the same memory."""
        other = copy.copy(self)
        other._margins = margins  # noqa: SLF001 - its own kind
        return other

    def _kept_work(self, key: str) -> Work | None:
        try:
            return Work.from_json(read_json(self._cache_dir / "work" / f"{key}.json")["counts"])
        except (KeyError, TypeError, ValueError):
            return None

    def _keep_work(self, key: str, work: Work) -> None:
        self._works[key] = work
        with suppress(OSError):  # where nothing can be kept, it is counted again
            write_json(self._cache_dir / "work" / f"{key}.json", {"counts": work.to_json()})

    def _traced(self, key: str, params: Params) -> PredictedMemory:
        traced = self._programs.trace(params)
        if traced.work is not None:
            self._keep_work(key, traced.work)
        predicted = self._machine.predicted(traced)
        with suppress(OSError):  # where nothing can be kept, it is traced again
            write_json(self._cache_dir / f"{key}.json", asdict(predicted))
        return predicted

    def _key(self, params: Params) -> str:
        decides = memory_key(params, memory_neutral(self._objective))
        decides["micro_batch_size"] = micro_batch_size(params)
        return self._digest(decides, [params])

    def _digest(self, content: Any, configurations: Iterable[Params]) -> str:
        """A name for some content, the batches of some configurations and all settings."""
        with torch.device("meta"):
            shapes = [
                _shapes(batch)
                for params in configurations
                for batch in example_batches(self._objective, params)
            ]
        text = json.dumps([self._setting, content, shapes], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def point_by_point(self) -> tuple[str, ...]:
        """Why some structures are traced anew for each batch size and length."""
        return self._programs.reasons

    @property
    def length(self) -> str | None:
        """The dimension that is the length of a sample; None where there is none."""
        return self._programs.length

    @cached_property
    def _setting(self) -> list[Any]:
        """What else a prediction hangs on: versions, code, machine, the objective's settings."""
        package = type(self._objective).__module__.partition(".")[0]
        plain = {
            name: value
            for name, value in vars(self._objective).items()
            if isinstance(value, str | int | float)
        }
        sources = [_own_source_hash(), _source_hash(package)]
        environment = [*compiler_switches(), workspace_setting()]
        machine = repr(self._machine)
        more = [repr(self._deployment)] if self._deployment else []
        own = [_path(self._objective), plain, *more]
        return [torch.__version__, machine, *environment, *sources, *own]


_TRAINING = (
    "training.py",
    "training_params.py",
    "optimizers.py",
    "eight_bit.py",
    "offload.py",
    "checkpointing.py",
    "loading.py",
    "parallel.py",
    "prefetching.py",
    "compression/distillation.py",
    "compression/params.py",
    "compression/serving.py",
)
"""The modules that decide a step's tensors."""


def _own_source_hash() -> str:
    """A hash of the code that predicts and trains, loaded yet or not: a plan serves a sweep."""
    room = Path(__file__).parent
    return _hash_of([*room.glob("*.py"), *(room.parent / name for name in _TRAINING)])


def _path(objective: Objective) -> str:
    kind = type(objective)
    return f"{kind.__module__}:{kind.__qualname__}"


def _source_hash(package: str) -> str:
    """A hash of the loaded modules of a package, so that changed code is traced anew."""
    return _hash_of(
        Path(str(module.__file__))
        for name, module in list(sys.modules.items())
        if (name == package or name.startswith(f"{package}.")) and getattr(module, "__file__", None)
    )


def _hash_of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _shapes(batch: Batch) -> list[list[Any]]:
    return [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in batch.items()]
