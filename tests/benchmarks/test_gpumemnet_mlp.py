"""The rebuilt multilayer perceptrons: their widths and sizes."""

from dataclasses import replace

import pytest
from torch import nn

from benchmarks.gpumemnet_mlp import MlpSetting, ends_early, network, num_parameters, widths

SETTING = MlpSetting(
    inputs=100,
    outputs=10,
    hidden_layers=3,
    architecture="pyramid",
    activation="relu",
    dropout=None,
    batch_norm=False,
    batch=8,
)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("pyramid", (100, 50, 25, 12)),
        ("bottleneck", (100, 50, 25, 12, 10)),  # one block more; half of 12 is below the outputs
        ("uniform", (100, 100, 100, 100)),
        ("gradual", (100, 70, 40, 10)),  # (100 - 10) // 3 less each time
    ],
)
def test_the_widths_follow_the_architecture(architecture, expected):
    assert widths(replace(SETTING, architecture=architecture)) == expected


def test_a_published_model_has_its_published_size():
    # Row 9 of mlp_data_step2.csv: 10 hidden blocks with batch norm, 4,410,902 parameters.
    setting = MlpSetting(
        inputs=2162,
        outputs=397,
        hidden_layers=9,
        architecture="bottleneck",
        activation="elu",
        dropout=0.45,
        batch_norm=True,
        batch=166,
    )
    assert num_parameters(setting) == 4_410_902
    kinds = [type(layer) for layer in network(setting)]
    counts = [kinds.count(kind) for kind in (nn.Linear, nn.BatchNorm1d, nn.ELU, nn.Dropout)]
    assert counts == [11, 10, 10, 10]


def test_one_output_has_no_softmax_and_slopes_are_not_counted():
    layers = network(replace(SETTING, outputs=1, activation="prelu"))
    assert not any(isinstance(layer, nn.Softmax) for layer in layers)
    with_slopes = sum(parameter.numel() for parameter in layers.parameters())
    counted = num_parameters(replace(SETTING, outputs=1, activation="prelu"))
    assert with_slopes - counted == 3


def test_a_last_batch_of_one_ends_a_script_with_batch_norm():
    # 4096 = 63 x 65 + 1.
    assert ends_early(replace(SETTING, batch=65, batch_norm=True))
    assert not ends_early(replace(SETTING, batch=65))
    assert not ends_early(replace(SETTING, batch=64, batch_norm=True))
