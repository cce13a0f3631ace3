import pytest
import torch
from torch import nn

from search.compression.compress import compress
from search.compression.params import CompressionParams, Quantization
from search.compression.stored import load_model, save_model

CPU = torch.device("cpu")
COMPRESSED = {
    "dense": {},
    "cut": {"pruned_channels": 0.5},
    "zeros": {"pruned_weights": 0.5},
    "int8": {"quantization": "int8-weight-only"},
    "all": {"pruned_channels": 0.5, "pruned_weights": 0.5, "quantization": "int8-dynamic"},
}


@pytest.mark.parametrize("how", COMPRESSED)
def test_a_loaded_model_gives_the_same_outputs(case, how, tmp_path):
    objective, params, batch = case
    torch.manual_seed(0)
    model = objective.model(params).eval()
    params = {**params, **COMPRESSED[how]}
    with torch.no_grad():
        compress(model, CompressionParams.of(params), lambda: objective.loss(model, batch))
        size = save_model(model, tmp_path / "model.pt")
        loaded = load_model(objective, params, tmp_path / "model.pt", CPU)
        assert objective.loss(loaded, batch) == objective.loss(model, batch)
    assert size == (tmp_path / "model.pt").stat().st_size
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


class Wide:
    """An objective whose model is a single linear layer, wide enough to outweigh a file's frame."""

    def model(self, params):
        del params
        return nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))


def test_int8_is_near_a_quarter_on_disk(tmp_path):
    dense = save_model(Wide().model({}), tmp_path / "dense.pt")
    for kind in (Quantization.INT8_DYNAMIC, Quantization.INT8_WEIGHT_ONLY):
        model = Wide().model({})
        compress(model, CompressionParams(quantization=kind), lambda: torch.zeros(()))
        size = save_model(model, tmp_path / "int8.pt")
        # two weights of 1 MiB become 256 KiB each; biases, a scale a row, and names stay
        assert 0.25 < size / dense < 0.26


def test_buffers_that_are_never_saved_are_made_again(tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("places", torch.arange(3.0), persistent=False)

    class Objective:
        def model(self, params):
            del params
            return Counting()

    save_model(Counting(), tmp_path / "model.pt")
    loaded = load_model(Objective(), {}, tmp_path / "model.pt", CPU)
    assert loaded.places.tolist() == [0.0, 1.0, 2.0]
