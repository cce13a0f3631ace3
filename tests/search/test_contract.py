# ruff: noqa: ARG002 - a fake has the whole signature

from dataclasses import dataclass
from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional

from search.contract import check_objective
from search.errors import InputError
from search.metric import Goal, Metric
from search.objective import Split


@dataclass(frozen=True, kw_only=True)
class LineParams:
    slope: float = 2.0


class Line:
    """Learns a line from points, and keeps every promise; each test breaks one."""

    metrics = (Metric(name="error", goal=Goal.MIN),)
    parameters = LineParams
    provenance = {"data": "a line"}  # noqa: RUF012 - as a user may write it

    def model(self, params):
        return nn.Linear(1, 1)

    def batch(self, params, split):
        shape = (params["batch_size"], 1) if split is Split.TRAIN else (5, 1)
        return {"x": torch.zeros(shape), "y": torch.zeros(shape)}

    def data(self, params, split, *, seed, num_tokens=None):
        generator = torch.Generator().manual_seed(seed if split is Split.TRAIN else 0)
        count = num_tokens if split is Split.TRAIN else 7
        x = torch.randn(count, 1, generator=generator)
        for part in x.split(params["batch_size"] if split is Split.TRAIN else 5):
            yield {"x": part, "y": 2 * part}

    def num_tokens(self, batch):
        return len(batch["x"])

    def tokens_per_sample(self, params):
        return 1

    def loss(self, model, batch):
        return functional.mse_loss(model(batch["x"]), batch["y"])

    def evaluate(self, model, batches):
        return {"error": sum(self.loss(model, batch).item() for batch in batches)}


PARAMS = {"batch_size": 4}


def test_an_objective_that_keeps_its_promises_passes():
    check_objective(Line(), PARAMS)


def _line_with_usual_batches(shape, dtype=torch.float32):
    class Padded(Line):
        def usual_batch(self, params):
            return {"x": torch.zeros(shape, dtype=dtype), "y": torch.zeros(4, 1)}

    return Padded()


def test_usual_batches_are_like_the_largest_and_nowhere_larger():
    check_objective(_line_with_usual_batches((4, 1)), PARAMS)
    wrong = [((4, 2), torch.float32), ((3, 1), torch.float32), ((4, 1), torch.float64)]
    for shape, dtype in wrong:
        with pytest.raises(InputError, match=r"usual_batch\(params\): must be typed as batch"):
            check_objective(_line_with_usual_batches(shape, dtype), PARAMS)


class NoMetric(Line):
    metrics = ()


class SameMetricTwice(Line):
    metrics = Line.metrics * 2


class BadDefaults(Line):
    @staticmethod
    def parameters():
        msg = "slope must not be 2"
        raise ValueError(msg)


class TooManyTokens(Line):
    def data(self, params, split, *, seed, num_tokens=None):
        extra = 1 if num_tokens else 0
        return super().data(params, split, seed=seed, num_tokens=(num_tokens or 0) + extra)


class NothingHeldOut(Line):
    def data(self, params, split, *, seed, num_tokens=None):
        batches = super().data(params, split, seed=seed, num_tokens=num_tokens)
        return batches if split is Split.TRAIN else islice(batches, 0)


class NoSeed(Line):
    def data(self, params, split, *, seed, num_tokens=None):
        for batch in super().data(params, split, seed=seed, num_tokens=num_tokens):
            yield {"x": torch.randn_like(batch["x"]), "y": batch["y"]}


class UnfairToBatches(Line):
    def data(self, params, split, *, seed, num_tokens=None):
        batches = super().data(params, split, seed=seed, num_tokens=num_tokens)
        return islice(batches, 2 if params["batch_size"] == 4 else 1)


class OtherName(Line):
    def batch(self, params, split):
        return {"x": super().batch(params, split)["x"]}


class OtherType(Line):
    def batch(self, params, split):
        return {name: zeros.double() for name, zeros in super().batch(params, split).items()}


class SmallerShape(Line):
    def batch(self, params, split):
        return {name: zeros[1:] for name, zeros in super().batch(params, split).items()}


class LossOfEachSample(Line):
    def loss(self, model, batch):
        return (model(batch["x"]) - batch["y"]).flatten()


class LossWithoutGradient(Line):
    def loss(self, model, batch):
        return super().loss(model, batch).detach()


class NoValue(Line):
    def evaluate(self, model, batches):
        return {}


class NotFinite(Line):
    def evaluate(self, model, batches):
        return {"error": float("nan")}


class NeverTheSame(Line):
    def evaluate(self, model, batches):
        return {"error": torch.rand(()).item()}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (NoMetric, r"metrics must name at least one figure"),
        (SameMetricTwice, r"each once, found \['error', 'error'\]"),
        (BadDefaults, r"refuses its own defaults: slope must not be 2"),
        (TooManyTokens, r"data\(params, train\): must hold 6 tokens when asked for them, found 7"),
        (NothingHeldOut, r"data\(params, held_out\): holds nothing"),
        (NoSeed, r"data\(params, train\): gives other batches when it is called again"),
        (UnfairToBatches, r"must not depend on batch_size or seed"),
        (OtherName, r"batch\(params, train\): must be typed and shaped .* found \{'x'"),
        (OtherType, r"batch\(params, train\): .* found \{'x': 'torch.float64"),
        (SmallerShape, r"batch\(params, train\): .*\[4, 1\].* found .*\[3, 1\]"),
        (LossOfEachSample, r"loss\(\): must be a scalar"),
        (LossWithoutGradient, r"loss\(\): must be a scalar that can be differentiated"),
        (NoValue, r"must give a finite number for each of \['error'\], found \{\}"),
        (NotFinite, r"must give a finite number"),
        (NeverTheSame, r"gives other values for the same model"),
    ],
)
def test_a_broken_promise_is_named(broken, message):
    with pytest.raises(InputError, match=f"^{broken.__name__}: .*{message}"):
        check_objective(broken(), PARAMS)


class Sorter(Line):
    """Sorts points into two classes."""

    def model(self, params):
        return nn.Linear(1, 2)

    def scores(self, model, batch):
        return model(batch["x"]), (batch["y"] > 0).long().flatten()

    def loss(self, model, batch):
        return functional.cross_entropy(*self.scores(model, batch))

    def evaluate(self, model, batches):
        losses = [self.loss(model, batch) for batch in batches]
        return {"error": float(torch.stack(losses).mean())}


def test_scores_are_what_the_loss_is_made_of():
    class Doubled(Sorter):
        def loss(self, model, batch):
            return 2 * super().loss(model, batch)

    check_objective(Sorter(), {"batch_size": 4})
    with pytest.raises(InputError, match=r"scores\(\): their mean cross-entropy must be the loss"):
        check_objective(Doubled(), {"batch_size": 4})
