import copy

import pytest
import torch
from torch import nn

from search.compression import quantization
from search.compression.params import Quantization
from search.compression.quantization import linear_layers, quantize
from search.errors import InputError

INT8 = [Quantization.INT8_DYNAMIC, Quantization.INT8_WEIGHT_ONLY]


@pytest.mark.parametrize("kind", INT8)
def test_outputs_stay_close_to_those_of_the_float_model(case, kind):
    objective, params, batch = case
    torch.manual_seed(0)
    model = objective.model(params).eval()
    quantized = copy.deepcopy(model)
    names = quantize(quantized, kind)
    with torch.no_grad():
        ours, float_loss = objective.loss(quantized, batch), objective.loss(model, batch)
    assert ours != float_loss
    torch.testing.assert_close(ours, float_loss, rtol=0.02, atol=0.0)
    assert names == linear_layers(model)
    assert all(type(quantized.get_submodule(name).weight).__name__ != "Parameter" for name in names)


@pytest.mark.parametrize("kind", INT8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_int8_go_together(kind, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    inputs = torch.randn(16, 64)
    expected = model(inputs)
    quantize(model, kind)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        found = model(inputs)
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)


def test_a_weight_step_is_a_254th_of_its_row():
    """int8 has 127 steps on either side of 0: no weight moves by more than half of one."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    weight = layer.weight.detach().clone()
    quantize(nn.Sequential(layer), Quantization.INT8_WEIGHT_ONLY)
    moved = (layer.weight.dequantize() - weight).abs().amax(dim=1)
    assert (moved <= 1.01 * weight.abs().amax(dim=1) / 254).all()


def test_a_shared_weight_stays_as_it_is():
    embedding, head = nn.Embedding(10, 32), nn.Linear(32, 10, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Linear(32, 32), head)
    assert quantize(model, Quantization.INT8_WEIGHT_ONLY) == ("1",)
    assert head.weight is embedding.weight


def test_none_changes_nothing_and_needs_nothing():
    model = nn.Embedding(4, 4)
    assert quantize(model, Quantization.NONE) == ()
    with pytest.raises(InputError, match="quantization: the model has no linear layer"):
        quantize(model, Quantization.INT8_DYNAMIC)


def test_what_to_install_is_said_where_torchao_is_not_here(monkeypatch):
    assert quantization.missing() == ""
    monkeypatch.setattr(quantization.importlib.util, "find_spec", lambda _: None)
    assert "pip install 'paretune[quant]'" in quantization.missing()
