import itertools

import pytest
import torch
from torch import nn

from search.compression import serving
from search.compression.serving import latency, model_call, served_batch
from search.errors import InputError

CPU = torch.device("cpu")


def test_a_batch_is_filled_up_with_its_own_samples():
    batch = {"inputs": torch.tensor([[1], [2], [3]]), "labels": torch.tensor([1, 2, 3])}
    assert served_batch(batch, 5)["inputs"].tolist() == [[1], [2], [3], [1], [2]]
    assert served_batch(batch, 2)["labels"].tolist() == [1, 2]


def test_a_call_is_what_the_evaluation_calls(case):
    objective, params, batch = case
    model = objective.model(params).eval()
    with torch.no_grad():
        outputs = model_call(objective, model, batch)()
    assert isinstance(outputs, torch.Tensor)
    assert not model._forward_pre_hooks


def test_an_evaluation_that_calls_no_model_is_refused():
    class Objective:
        def evaluate(self, model, batches):
            return {"accuracy": float(sum(model.in_features for _ in batches))}

    with pytest.raises(InputError, match="Objective: evaluate never calls the model"):
        model_call(Objective(), nn.Linear(2, 2), {"inputs": torch.zeros(1, 2)})


def test_the_first_calls_are_left_out_and_the_median_counts(monkeypatch):
    clock, calls = itertools.count(), []
    seconds = [50.0, 50.0, 50.0, 1.0, 3.0, 2.0, 9.0, 2.0]
    times = iter(itertools.accumulate(itertools.chain.from_iterable((0.0, s) for s in seconds)))
    monkeypatch.setattr(serving.time, "perf_counter", lambda: next(times))
    found = latency(lambda: calls.append(next(clock)), CPU)
    assert len(calls) == 8
    assert (found.seconds, found.num_calls) == (2.0, 5)
    # standard deviation of 1, 3, 2, 9, 2 is 3.2094, their mean 3.4
    assert found.spread == pytest.approx(0.94393, abs=1e-5)
