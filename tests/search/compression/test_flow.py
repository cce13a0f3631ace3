import torch
from torch import nn
from torch.nn import functional

from search.compression.flow import Hidden, Reader, flow_of


def flow(model, *shape):
    return flow_of(model, lambda: model(torch.zeros(shape)))


def pair(name, reader, per_unit=1):
    return Hidden(name=name, readers=(Reader(name=reader, inputs_per_unit=per_unit),))


def test_units_go_through_what_leaves_zero_at_zero():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 2))
    found = flow(model, 3, 4)
    assert found.hidden == (pair("0", "3"),)
    assert found.refused == {"3": "its outputs are the model's"}


def test_what_does_not_leave_zero_at_zero_is_named():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))
    assert flow(model, 3, 4).refused["0"] == "its outputs go into sigmoid"


def test_norms_mix_units_or_move_zeros():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    assert flow(model, 3, 4).refused["0"] == "its outputs go into layer_norm"


def test_a_flattened_channel_is_as_many_inputs_as_it_has_pixels():
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    )
    assert flow(model, 5, 1, 6, 6).hidden == (pair("0", "4", per_unit=4),)


def test_flattening_samples_changes_nothing_for_the_units(net):
    model = net(
        lambda own, x: own.b(functional.relu(own.a(x)).flatten(0, 1)),
        nn.Linear(4, 8),
        nn.Linear(8, 2),
    )
    assert flow(model, 2, 3, 4).hidden == (pair("a", "b"),)


def test_two_readers_are_both_cut(net):
    def compute(own, x):
        x = functional.relu(own.a(x))
        return own.b(x) + own.c(x)

    model = net(compute, nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2))
    found = flow(model, 3, 4)
    assert [each.name for each in found.hidden] == ["a"]
    assert [reader.name for reader in found.hidden[0].readers] == ["b", "c"]


def test_one_other_reader_is_enough_to_refuse(net):
    def compute(own, x):
        x = own.a(x)
        return x + own.b(x)

    model = net(compute, nn.Linear(4, 8), nn.Linear(8, 8))
    assert flow(model, 3, 4).refused["a"] == "its outputs go into add"


def test_a_layer_used_twice_is_refused(net):
    model = net(lambda own, x: own.b(own.a(own.a(x))), nn.Linear(4, 4), nn.Linear(4, 2))
    assert flow(model, 3, 4).refused["a"] == "it is used twice"


def test_shared_weights_and_groups_are_refused():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    assert flow(nn.Sequential(a, b), 3, 4).refused == dict.fromkeys("01", "its weight is shared")
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 2, 1))
    assert flow(grouped, 1, 4, 5, 5).refused["0"] == "its channels are in groups"
    before = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2))
    assert "cannot be cut" in flow(before, 1, 1, 7, 7).refused["0"]


def test_nothing_of_the_model_changes(case):
    objective, params, batch = case
    model = objective.model(params).eval()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    flow_of(model, lambda: objective.loss(model, batch))
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_feed_forward_nets_and_convolutions_of_the_objectives_are_found(case):
    objective, params, batch = case
    model = objective.model(params).eval()
    found = [each.name for each in flow_of(model, lambda: objective.loss(model, batch)).hidden]
    if "image_size" in params:
        assert found == ["blocks.0.convolution", "blocks.1.convolution", "hidden"]
    else:
        layers = [name for name, _ in model.named_modules()]
        expected = [name for name in layers if name.endswith(("feed_forward.0", "linear1"))]
        assert found == expected
        assert len(found) in (1, 2, 4)
