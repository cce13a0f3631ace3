import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from search.errors import InputError, UnpredictableError
from search.memory.compiled import compiler_switches
from search.memory.cuda import Cuda
from search.memory.machine import CpuMemory
from search.memory.prediction import Predictor
from search.memory.sample import Sample
from search.memory.target import Cpu
from search.memory.trace import record, trace

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
"""TorchScript is deprecated, and what `torch.compile` loads still uses it."""

PARAMS = {"batch_size": 2, "width": 16, "depth": 2, "sequence_length": 8}
TARGETS = [Cpu(), Cuda(architecture=(8, 0))]


class Changed(Sample):
    """The sample, its model changed before it is trained."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def model(self, params):
        return self._change(super().model(params))


class Lossy(Sample):
    """The sample, the function behind its loss compiled."""

    def __init__(self, compiler):
        super().__init__()
        self._compiled = compiler(cross_entropy)

    def loss(self, model, batch):
        return self._compiled(model(batch["values"]).flatten(0, 1), batch["values"].flatten())


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets)


LINE = cross_entropy.__code__.co_firstlineno


def _in_place(model):
    model.compile()
    return model


def _part(model):
    model[1].blocks[1] = torch.compile(model[1].blocks[1])
    return model


def _part_in_place(model):
    model[1].blocks[1].feed_forward.compile()
    return model


def _forward(model):
    model.forward = torch.compile(model.forward)
    return model


def _scripted(model):
    return nn.Sequential(model[0], torch.jit.script(nn.Linear(16, 64)))


def _traced(_model):
    plain = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    return torch.jit.trace(plain, torch.zeros(2, 8, dtype=torch.int64))


def _by_another_backend(model):
    return torch.compile(model, backend="eager", fullgraph=True)


def _fullgraph(function):
    return torch.compile(function, fullgraph=True)


@pytest.mark.parametrize("target", TARGETS, ids=["cpu", "cuda"])
@pytest.mark.parametrize(
    ("made", "place"),
    [
        ((Changed, torch.compile), "the model, a Sequential, is compiled by torch.compile"),
        (
            (Changed, _by_another_backend),
            "the model, a Sequential, is compiled by torch.compile",
        ),
        ((Changed, _in_place), "the model, a Sequential, is compiled by torch.compile"),
        ((Changed, _forward), "the model, a Sequential, is compiled by torch.compile"),
        (
            (Changed, _part),
            "the part '1.blocks.1' of the model, a _Block, is compiled by torch.comp",
        ),
        (
            (Changed, _part_in_place),
            "the part '1.blocks.1.feed_forward' of the model, a Sequential",
        ),
        (
            (Lossy, torch.compile),
            f"cross_entropy() (test_compiled.py, line {LINE}) is compiled by torch.compile",
        ),
        (
            (Lossy, _fullgraph),
            f"cross_entropy() (test_compiled.py, line {LINE}) is compiled by torch.compile",
        ),
        ((Changed, torch.jit.script), "the model, a Sequential, is compiled by torch.jit"),
        ((Changed, _scripted), "the part '1' of the model, a Linear, is compiled by torch.jit"),
        ((Changed, _traced), "the model, a Sequential, is compiled by torch.jit"),
        ((Lossy, torch.jit.script), "cross_entropy() is compiled by torch.jit"),
    ],
    ids=[
        "model",
        "model by another backend",
        "model in place",
        "forward",
        "part",
        "part in place",
        "loss",
        "whole graph of the loss",
        "scripted model",
        "scripted part",
        "traced model",
        "scripted loss",
    ],
)
def test_what_torch_compiles_is_refused_by_its_place(made, place, target):
    kind, change = made
    objective = kind(change)
    if place.startswith("the model, a Sequential, is compiled by torch.jit"):
        objective = _scriptable(objective)
    with pytest.raises(UnpredictableError) as refused:
        trace(objective, PARAMS, target=target)
    assert str(refused.value).startswith(place)
    assert "memory.gate: false" in str(refused.value)
    assert isinstance(refused.value, InputError)


def _scriptable(objective):
    """Without blocks, whose lists TorchScript does not know."""
    plain = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    change = objective._change
    objective.model = lambda _params: change(plain)
    return objective


def test_a_part_keeps_its_name_inside_checkpoints():
    with pytest.raises(UnpredictableError, match=r"part '1\.blocks\.1\.feed_forward' of the model"):
        trace(Changed(_part_in_place), {**PARAMS, "activation_checkpointing": True})


def test_what_is_compiled_and_called_in_the_evaluation_alone_is_refused():
    class Evaluated(Sample):
        def evaluate(self, model, batches):
            measured = torch.compile(cross_entropy)
            logits = [model(batch["values"]).flatten(0, 1) for batch in batches]
            return {"nats": measured(logits[0], torch.zeros(16, dtype=torch.int64)).item()}

    with pytest.raises(UnpredictableError, match=r"^cross_entropy\(\)"):
        trace(Evaluated(), PARAMS)


def test_the_refusal_is_told_before_what_fails_because_of_it():
    def failing(_recorder):
        torch.compile(cross_entropy)(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
        raise ValueError

    with pytest.raises(UnpredictableError, match="cross_entropy"):
        record(failing, Cpu())


@pytest.mark.parametrize("target", TARGETS, ids=["cpu", "cuda"])
def test_what_torch_is_told_not_to_compile_is_predicted_as_it_runs(target):
    plain = trace(Sample(), PARAMS, target=target)
    disabled = Changed(lambda model: torch.compile(model, disable=True))
    assert trace(disabled, PARAMS, target=target).events == plain.events
    with torch.compiler.set_stance("force_eager"):
        assert trace(Changed(_part), PARAMS, target=target).events == plain.events
        assert trace(Lossy(torch.compile), PARAMS, target=target).events


def test_compiled_code_still_compiles_after_a_refusal():
    compiled = []

    def backend(module, _inputs):
        compiled.append(module)
        return module.forward

    doubled = torch.compile(lambda tensor: 2 * tensor, backend=backend)
    with pytest.raises(UnpredictableError):
        record(lambda _: doubled(torch.zeros(3)), Cpu())
    assert not compiled
    assert torch.equal(doubled(torch.ones(3)), torch.full((3,), 2.0))
    assert len(compiled) == 1


def test_a_kept_prediction_does_not_outlive_the_switch_it_was_made_with(tmp_path, monkeypatch):
    machine = CpuMemory(overhead_bytes=0)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    with torch._dynamo.config.patch(disable=True):  # as torch reads the switch
        assert Predictor(Changed(torch.compile), machine, tmp_path)(PARAMS).expected_bytes
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    with pytest.raises(UnpredictableError):
        Predictor(Changed(torch.compile), machine, tmp_path)(PARAMS)


_SWITCHED_OFF = """
import torch
from search.memory.sample import Sample
from search.memory.trace import trace

class Switched(Sample):
    def model(self, params):
        model = super().model(params)
        model[2] = torch.jit.script(model[2])
        return torch.compile(model)

params = {"batch_size": 2, "width": 16, "depth": 1, "sequence_length": 8}
print(trace(Switched(), params).events == trace(Sample(), params).events)
"""


@pytest.mark.parametrize("switch", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_the_switches_that_a_refusal_names_turn_compilers_off(switch):
    environment = {**os.environ, switch: "1", "PYTORCH_JIT": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SWITCHED_OFF],
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


def test_predictions_hang_on_the_stance_of_the_compiler():
    before = compiler_switches()
    with torch.compiler.set_stance("force_eager"):
        assert compiler_switches() != before
    assert compiler_switches() == before
