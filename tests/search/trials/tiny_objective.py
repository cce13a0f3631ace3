"""A model of a few weights whose params decide how a trial ends. Imported by workers too."""

import ctypes
import itertools
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed, nn

from search.metric import Goal, Metric
from search.objective import Split
from search.training_params import micro_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyParams:
    width: int = 4
    ending: str = "completed"
    hoard_mib: int = 0


class TinyModel:
    metrics = (Metric(name="bits_per_byte", goal=Goal.MIN),)
    parameters = TinyParams
    provenance = {"corpus": "none"}  # noqa: RUF012

    def __init__(self, gate: str = "", trace: str = "", killed: str = "") -> None:
        self._gate = Path(gate) if gate else None
        self._killed = Path(killed) if killed else None
        self._trace = Path(trace) if trace else None

    def model(self, params):
        if self._trace:
            with self._trace.open("a") as file:
                file.write(f"{params['width']}\n")
        model = nn.Linear(8, params["width"])
        model.ending = params.get("ending", "completed")
        model.hoard_mib = params.get("hoard_mib", 0)
        model.width = params["width"]
        return model

    def batch(self, params, split):
        del split
        return {"inputs": torch.zeros(micro_batch_size(params), 8)}

    def data(self, params, split, *, seed, num_tokens=None):
        generator = torch.Generator().manual_seed(seed)
        size = micro_batch_size(params)
        for start in itertools.count(0, size):
            if num_tokens is not None and start >= num_tokens:
                return
            rows = size if num_tokens is None else min(size, num_tokens - start)
            yield {"inputs": torch.randn(rows, 8, generator=generator)}
            if num_tokens is None and split is Split.HELD_OUT:
                return

    def num_tokens(self, batch):
        return len(batch["inputs"])

    def tokens_per_sample(self, params):
        del params
        return 1

    def loss(self, model, batch):
        loss = model(batch["inputs"]).square().mean()
        if model.training:
            loss = self._end(model, loss)
        return loss

    def _end(self, model, loss):
        if self._gate and model.width >= 100:
            _wait_until(self._gate.exists)
        if model.hoard_mib:
            model.hoard = torch.ones(model.hoard_mib * 2**18)
        self._end_of_rank(model.ending)
        match model.ending:
            case "nan":
                return loss * float("nan")
            case "error":
                msg = "the user's own mistake"
                raise ValueError(msg)
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "leak":
                _LEAKED.append(torch.ones(48 * 2**18))
            case "crash":
                ctypes.string_at(0)
            case "slow":
                threading.Event().wait(0.2)
        return loss

    def _end_of_rank(self, ending):
        if not ending.endswith("of_rank_1") or distributed.get_rank() != 1:
            return
        if ending == "memory_of_rank_1":
            torch.ones(3000 * 2**18)
        elif not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluate(self, model, batches):
        losses = [self.loss(model, batch).item() for batch in batches]
        value = sum(losses) / len(losses)
        if model.ending == "bad_evaluation":
            return {"bits_per_byte": float("inf")}
        if model.ending == "no_metric":
            return {"other": value}
        return {"bits_per_byte": value}


_LEAKED = []


def _wait_until(condition) -> None:
    while not condition():
        threading.Event().wait(0.02)
