import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from search.compression.weights import prune_weights, pruned_share
from search.errors import InputError


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 10), nn.LayerNorm(10))


@given(share=st.floats(0, 0.99))
def test_each_layer_loses_that_share_of_its_weights(share):
    model = net()
    prune_weights(model, share)
    for layer in (model[0], model[2]):
        assert int((layer.weight == 0).sum()) == round(share * layer.weight.numel())


def test_the_least_magnitudes_go_whatever_their_sign():
    layer = nn.Linear(4, 1)
    layer.weight.data = torch.tensor([[0.1, -4.0, -0.2, 3.0]])
    prune_weights(nn.Sequential(layer), 0.5)
    assert layer.weight.tolist() == [[0.0, -4.0, 0.0, 3.0]]


def test_of_equal_magnitudes_no_more_go_than_asked():
    layer = nn.Linear(10, 10)
    layer.weight.data.fill_(0.5)
    prune_weights(nn.Sequential(layer), 0.3)
    assert int((layer.weight == 0).sum()) == 30


def test_biases_norms_and_embeddings_stay():
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10), nn.LayerNorm(10))
    kept = {name: each.clone() for name, each in model.named_parameters() if name != "1.weight"}
    prune_weights(model, 0.9)
    assert all(torch.equal(model.get_parameter(name), each) for name, each in kept.items())


def test_a_weight_that_an_embedding_shares_stays():
    embedding, head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Linear(8, 8), head)
    prune_weights(model, 0.5)
    assert int((head.weight == 0).sum()) == 0
    assert pruned_share(model) == 0.5


def test_attention_is_pruned_with_its_projections():
    model = nn.MultiheadAttention(8, 2)
    prune_weights(model, 0.25)
    assert int((model.in_proj_weight == 0).sum()) == 48  # a quarter of 24 by 8
    assert int((model.out_proj.weight == 0).sum()) == 16


def test_bf16_weights_are_pruned_in_place():
    layer = nn.Linear(64, 64).to(torch.bfloat16)
    prune_weights(nn.Sequential(layer), 0.5)
    assert layer.weight.dtype == torch.bfloat16
    assert int((layer.weight == 0).sum()) == 2048


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(InputError, match="pruned_weights: the model has no linear or conv"):
        prune_weights(nn.Embedding(4, 4), 0.5)
