"""A model as it serves: one call of it on a batch, and how long that takes in steady state."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from search.errors import InputError
from search.objective import Split

if TYPE_CHECKING:
    from search.objective import Batch, Objective
    from search.results import Params

_WARM_UP_CALLS = 3
"""Calls left out of the latency: they compile kernels and touch new memory."""
_LEAST_CALLS = 5
_MOST_CALLS = 200
_SECONDS = 1.0
"""How long calls are timed, the least number of them aside."""


def served_batch(batch: Batch, num_samples: int) -> Batch:
    """A batch of that many samples: those of a held-out one, over again where there are fewer."""
    return {
        name: tensor[torch.arange(num_samples, device=tensor.device) % len(tensor)]
        for name, tensor in batch.items()
    }


def held_out_batch(objective: Objective, params: Params, num_samples: int) -> Batch:
    """The first samples that are held out, as many as are to be served at once."""
    first = next(iter(objective.data(params, Split.HELD_OUT, seed=0)))
    return served_batch(first, num_samples)


class _CalledError(Exception):
    """Carries what a model is called with out of the evaluation that calls it."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.args_given, self.kwargs_given = args, kwargs


def model_call(objective: Objective, model: nn.Module, batch: Batch) -> Callable[[], object]:
    """Calls the model on a batch as its evaluation does, without what that makes of its outputs.

    Raises:
        InputError: when the objective's `evaluate` does not call the model itself.
    """

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _CalledError(args, kwargs)

    hook = model.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        objective.evaluate(model, [batch])
    except _CalledError as called:
        args, kwargs = called.args_given, called.kwargs_given
        return lambda: model(*args, **kwargs)
    finally:
        hook.remove()
    msg = (
        f"{type(objective).__name__}: evaluate never calls the model it is given, so it cannot be "
        "told how that serves (call it as a function, or leave out 'compression')"
    )
    raise InputError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of a call: the median, the standard deviation as a share of the mean, the number."""

    seconds: float
    spread: float
    num_calls: int


def latency(call: Callable[[], object], device: torch.device) -> Latency:
    """How long a call takes in steady state: the first ones are left out, each is waited for."""
    for _ in range(_WARM_UP_CALLS):
        _timed(call, device)
    times: list[float] = []
    while len(times) < _LEAST_CALLS or (sum(times) < _SECONDS and len(times) < _MOST_CALLS):
        times.append(_timed(call, device))
    return Latency(
        seconds=statistics.median(times),
        spread=statistics.stdev(times) / statistics.mean(times),
        num_calls=len(times),
    )


def _timed(call: Callable[[], object], device: torch.device) -> float:
    before = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - before
