import copy

import pytest
import torch
from torch import nn

from search.compression.channels import kept_units, prune_channels
from search.compression.flow import flow_of
from search.errors import InputError


def test_the_units_with_the_largest_sum_of_magnitudes_stay():
    weight = torch.tensor([[1.0, -1.0], [0.1, 0.1], [-5.0, 0.0], [0.5, 0.5]])
    assert kept_units(weight, 0.5).tolist() == [0, 2]
    assert kept_units(weight, 0.99).tolist() == [2]


def zeroed_twin(model, names, share):
    """The model with the same units at 0 instead of taken out."""
    twin = copy.deepcopy(model)
    for name in names:
        layer = twin.get_submodule(name)
        gone = torch.ones(len(layer.weight), dtype=torch.bool)
        gone[kept_units(layer.weight, share)] = False
        for parameter in layer.parameters():
            parameter.data[gone] = 0
    return twin


@pytest.mark.parametrize("share", [0.25, 0.6])
def test_smaller_layers_compute_what_the_dense_twin_with_zeros_does(case, share):
    objective, params, batch = case
    torch.manual_seed(0)
    model = objective.model(params).eval()
    hidden = flow_of(model, lambda: objective.loss(model, batch)).hidden
    twin = zeroed_twin(model, [each.name for each in hidden], share)
    sizes = prune_channels(model, share, lambda: objective.loss(model, batch))
    with torch.no_grad():
        ours, theirs = objective.loss(model, batch), objective.loss(twin, batch)
        dense = objective.loss(objective.model(params).eval(), batch)
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(ours, dense)
    for each in hidden:
        before, after = sizes[each.name]
        assert after == before - round(share * before)
        assert len(model.get_submodule(each.name).weight) == after
        reader = model.get_submodule(each.readers[0].name)
        assert reader.weight.shape[1] == after * each.readers[0].inputs_per_unit
    assert sum(map(torch.numel, model.parameters())) < sum(map(torch.numel, twin.parameters()))


def test_layers_say_their_new_sizes():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    prune_channels(model, 0.5, lambda: model(torch.ones(1, 1, 4, 4)).sum())
    assert (model[0].out_channels, model[0].in_channels) == (2, 1)
    assert (model[3].in_features, model[3].out_features) == (8, 2)
    assert "in_features=8" in repr(model[3])


def test_a_model_without_hidden_layers_is_refused_layer_by_layer():
    model = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"taken out \(0: its outputs go into sum\): set it to 0"):
        prune_channels(model, 0.5, lambda: model(torch.ones(1, 4)).sum())


class Unseen(torch.autograd.Function):
    """Reads what torch's functions do not show."""

    @staticmethod
    def forward(context, x):
        del context
        return torch.full((len(x), 1), float(x.shape[1]))


def test_a_reader_that_was_not_seen_is_noticed(net):
    def compute(own, x):
        x = own.a(x)
        return own.b(x).sum() + Unseen.apply(x).sum()

    model = net(compute, nn.Linear(4, 8), nn.Linear(8, 2))
    with pytest.raises(InputError, match="computes something else"):
        prune_channels(model, 0.5, lambda: model(torch.ones(1, 4)))
