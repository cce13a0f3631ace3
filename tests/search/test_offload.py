import gc
import io
import weakref
from unittest import mock

import pytest
import torch
from torch import nn

from search import optimizers
from search.memory.cuda import Cuda
from search.memory.cuda_streams import installed_streams
from search.memory.events import Part
from search.memory.sample import Sample
from search.memory.trace import trace
from search.optimizers import Implementation, Optimizer, has_torchao, load, new_optimizer
from search.training import TrainingRun
from search.training_params import TrainingParams

pytestmark = pytest.mark.skipif(not has_torchao(), reason="torchao is not installed")
OFFLOADED = {"optimizer_offload": True, "clip_norm": 0.0}
SHAPES = ((64, 64), (80, 64), (64,))


@pytest.fixture
def as_on_a_gpu():
    """The code of torchao, with the host's memory for the device's and without page locks."""
    load(Optimizer.ADAMW, offload=True)
    made = torch.empty_like

    def unlocked(*args, **kwargs):
        return made(*args, **{**kwargs, "pin_memory": False})

    with installed_streams(), mock.patch.object(torch, "empty_like", unlocked):
        yield


def over(params, *, offload, optimizer=Optimizer.ADAMW):
    implementation = Implementation.AUTO if offload else Implementation.FUSED
    return new_optimizer(
        params,
        optimizer,
        implementation,
        learning_rate=1e-2,
        weight_decay=0.1,
        momentum=0.9,
        offload=offload,
    )


def some_params():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def backward(params, seed):
    generator = torch.Generator().manual_seed(seed)
    factors = [torch.randn(param.shape, generator=generator) for param in params]
    sum((p * f).sum() for p, f in zip(params, factors, strict=True)).backward()


@pytest.mark.usefixtures("as_on_a_gpu")
class TestOnTheHost:
    @pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
    def test_an_update_is_as_on_the_device(self, optimizer):
        plain, offloaded = some_params(), some_params()
        kind = Optimizer(optimizer)
        steps = [
            (plain, over(plain, offload=False, optimizer=kind)),
            (offloaded, over(offloaded, offload=True, optimizer=kind)),
        ]
        for number in range(3):
            for params, update in steps:
                backward(params, 2 * number)
                backward(params, 2 * number + 1)  # accumulated
                update.step()
                update.zero_grad(set_to_none=True)
        torch.testing.assert_close(offloaded, plain, rtol=0, atol=0)

    def test_a_model_that_is_let_go_goes(self):
        params = some_params()
        update = over(params, offload=True)
        backward(params, 0)
        update.step()
        gone = [weakref.ref(param) for param in params] + [weakref.ref(update)]
        del params, update
        gc.collect()
        assert [ref() for ref in gone] == [None] * 4

    def test_it_goes_on_from_a_checkpoint(self):
        first, second = some_params(), some_params()
        updates = [over(params, offload=True) for params in (first, second)]
        backward(first, 0)
        updates[0].step()
        updates[0].zero_grad()
        file = io.BytesIO()
        torch.save([updates[0].state_dict(), [param.detach() for param in first]], file)
        file.seek(0)
        state, weights = torch.load(file, weights_only=True)
        with torch.no_grad():
            for param, weight in zip(second, weights, strict=True):
                param.copy_(weight)
        updates[1].load_state_dict(state)
        for params, update in zip((first, second), updates, strict=True):
            backward(params, 1)
            update.step()
        torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_the_state_of_large_parameters_leaves_the_gpu():
    params = {"width": 64, "depth": 2, "batch_size": 2, "clip_norm": 0.0}
    on_device, on_host = (
        trace(Sample(), {**params, **chosen}, target=Cuda(architecture=(8, 0)))
        for chosen in ({"optimizer_implementation": "fused"}, OFFLOADED)
    )
    model = TrainingRun(Sample(), params, num_tokens=9, device=torch.device("cpu")).model
    large = [param for param in model.parameters() if param.numel() >= 4096]
    # Of each number two moments of 4 bytes, of each parameter a counter of 4.
    left = sum(8 * param.numel() + 4 for param in large)
    assert on_device.parts[Part.OPTIMIZER] - on_host.parts[Part.OPTIMIZER] == left
    assert on_device.peak_bytes - on_host.peak_bytes == left


def test_it_changes_nothing_on_a_cpu():
    params = {"batch_size": 2, "clip_norm": 0.0}
    plain = trace(Sample(), params)
    with pytest.warns(UserWarning, match="changes nothing on a CPU"):
        run = TrainingRun(
            Sample(), {**params, **OFFLOADED}, num_tokens=9, device=torch.device("cpu")
        )
    assert type(run.optimizers[0]) is torch.optim.AdamW
    assert trace(Sample(), {**params, **OFFLOADED}).events == plain.events


@pytest.mark.parametrize(
    ("chosen", "mend"),
    [
        ({"clip_norm": 1.0}, "set clip_norm to 0"),
        ({"precision": "16-mixed"}, "a precision other than 16-mixed"),
        ({"step_in_backward": True}, "neither with step_in_backward"),
        ({"zero_grad_to_none": False}, "nor with zero_grad_to_none false"),
        ({"optimizer": "adafactor"}, "take adamw"),
        ({"optimizer": "adamw-8bit"}, "take adamw"),
    ],
)
def test_what_it_does_not_go_with_is_refused(chosen, mend):
    with pytest.raises(ValueError, match=mend):
        TrainingParams.of({**OFFLOADED, **chosen})


def test_it_needs_torchao(monkeypatch):
    monkeypatch.setattr(optimizers, "has_torchao", lambda: False)
    with pytest.raises(ValueError, match=r"needs torchao \(pip install"):
        TrainingParams.of(OFFLOADED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_keeps_no_state_and_learns_the_same():
    params = {"width": 128, "depth": 2, "batch_size": 4, "clip_norm": 0.0}
    losses = []
    for chosen in ({}, OFFLOADED):
        run = TrainingRun(
            Sample(), {**params, **chosen}, num_tokens=10**6, device=torch.device("cuda")
        )
        losses.append([run.step().loss.item() for _ in range(5)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    states = [state for part in run.optimizers[0].parts[1:] for state in part.state.values()]
    assert {tensor.device.type for state in states for tensor in state.values()} == {"cpu"}
