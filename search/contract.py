"""The test that every objective passes, for those who write one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from search.errors import InputError
from search.objective import Split, scores, usual_batch
from search.training import TrainingRun
from search.training_params import TrainingParams

if TYPE_CHECKING:
    from search.objective import Batch, Objective
    from search.results import Params


def check_objective(objective: Objective, params: Params) -> None:
    """Returns when the objective keeps the contract of `search.objective.Objective`.

    It is trained on the CPU for a step or two and evaluated twice, so `params` should be small.

    Raises:
        InputError: naming the first promise that is broken.
    """
    for broken in _broken_promises(objective, params):
        msg = f"{type(objective).__name__}: {broken}"
        raise InputError(msg)


def _broken_promises(objective: Objective, params: Params) -> Iterator[str]:
    yield from _broken_declarations(objective)
    num_tokens = (
        objective.tokens_per_sample(params) * (TrainingParams.of(params).batch_size + 1) + 1
    )
    for split in Split:
        yield from _broken_batches(objective, params, split, num_tokens)
    yield from _broken_usual_batch(objective, params)
    yield from _broken_fairness(objective, params)
    yield from _broken_training(objective, params, num_tokens)


def _broken_declarations(objective: Objective) -> Iterator[str]:
    names = [metric.name for metric in objective.metrics]
    if not names or len(names) != len(set(names)):
        yield f"metrics must name at least one figure, each once, found {names}"
    try:
        objective.parameters()
    except (TypeError, ValueError) as error:
        yield f"parameters refuses its own defaults: {error}"


def _broken_batches(
    objective: Objective, params: Params, split: Split, num_tokens: int
) -> Iterator[str]:
    place = f"data(params, {split!s})"
    first, second = (
        list(objective.data(params, split, seed=0, num_tokens=num_tokens)) for _ in range(2)
    )
    found = sum(map(objective.num_tokens, first))
    if split is Split.TRAIN and found != num_tokens:
        yield f"{place}: must hold {num_tokens} tokens when asked for them, found {found}"
    if not found:
        yield f"{place}: holds nothing"
    if not _equal(first, second):
        yield f"{place}: gives other batches when it is called again"
    largest = objective.batch(params, split)
    if _described([largest]) != _described(first):
        yield (
            f"batch(params, {split!s}): must be typed and shaped as the largest of the data, "
            f"{_described(first)}, found {_described([largest])}"
        )


def _broken_usual_batch(objective: Objective, params: Params) -> Iterator[str]:
    usual = usual_batch(objective, params)
    if usual is None:
        return
    largest = objective.batch(params, Split.TRAIN)
    both = _described([usual, largest])
    samples = [{len(tensor) for tensor in batch.values()} for batch in (usual, largest)]
    if both != _described([largest]) or samples[0] != samples[1]:
        yield (
            "usual_batch(params): must be typed as batch, of as many samples and nowhere larger, "
            f"{_described([largest])}, found {_described([usual])}"
        )


def _equal(batches: list[Batch], others: list[Batch]) -> bool:
    return len(batches) == len(others) and all(
        batch.keys() == other.keys()
        and all(torch.equal(batch[name], other[name]) for name in batch)
        for batch, other in zip(batches, others, strict=True)
    )


def _broken_fairness(objective: Objective, params: Params) -> Iterator[str]:
    doubled = {**params, "batch_size": 2 * TrainingParams.of(params).batch_size}
    held_out = [
        list(objective.data(chosen, Split.HELD_OUT, seed=seed))
        for chosen, seed in ((params, 0), (doubled, 1))
    ]
    if not _equal(*held_out):
        yield f"data(params, {Split.HELD_OUT!s}): must not depend on batch_size or seed"


def _described(batches: Iterable[Batch]) -> dict[str, str]:
    """For each name its dtypes and the largest extent of each dimension."""
    tensors: dict[str, list[torch.Tensor]] = {}
    for batch in batches:
        for name, tensor in batch.items():
            tensors.setdefault(name, []).append(tensor)
    return {name: _largest(found) for name, found in sorted(tensors.items())}


def _largest(tensors: list[torch.Tensor]) -> str:
    kinds = {f"{tensor.dtype} on {tensor.device}" for tensor in tensors}
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    return f"{' and '.join(sorted(kinds))} {shape}"


def _broken_training(objective: Objective, params: Params, num_tokens: int) -> Iterator[str]:
    run = TrainingRun(objective, params, num_tokens=num_tokens, device=torch.device("cpu"))
    loss = objective.loss(run.model, objective.batch(params, Split.TRAIN))
    if loss.dim() or not loss.requires_grad:
        yield f"loss(): must be a scalar that can be differentiated, found {loss}"
    yield from _broken_scores(objective, run.model, objective.batch(params, Split.TRAIN))
    while not run.done:
        run.step()
    values = run.evaluate()
    names = {metric.name for metric in objective.metrics}
    if values.keys() != names or not all(map(math.isfinite, values.values())):
        yield f"evaluate(): must give a finite number for each of {sorted(names)}, found {values}"
    if run.evaluate() != values:
        yield "evaluate(): gives other values for the same model when it is called again"


def _broken_scores(objective: Objective, model: nn.Module, batch: Batch) -> Iterator[str]:
    """Left out: scores that this configuration has not, as it says itself."""
    if not hasattr(objective, "scores"):
        return
    model.eval()  # dropout would make the two differ
    with torch.no_grad():
        try:
            logits_NK, classes_N = scores(objective, model, batch)
        except InputError:
            return
        loss = objective.loss(model, batch)
    expected = nn.functional.cross_entropy(logits_NK, classes_N)
    if not torch.allclose(loss, expected, rtol=1e-3, equal_nan=True):
        yield f"scores(): their mean cross-entropy must be the loss, {loss}, found {expected}"
