import pytest

from benchmarks.configurations_measured import OBJECTIVES, configurations
from benchmarks.objectives_measured import (
    convolutional_net,
    multilayer_perceptron,
    transformer_encoder,
)
from search.contract import check_objective
from search.memory.trace import Part, trace


@pytest.mark.parametrize(
    ("new", "sizes"),
    [
        (transformer_encoder, {"width": 16, "sequence_length": 8}),
        (convolutional_net, {"width": 4, "image_size": 8}),
        (multilayer_perceptron, {"width": 16}),
    ],
)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_keep_the_contract_and_can_be_checkpointed(new, sizes, precision):
    params = {"batch_size": 4, "depth": 2, "precision": precision, **sizes}
    check_objective(new(), params)
    traced = trace(new(), {**params, "batch_size": 64, "activation_checkpointing": True})
    assert Part.PARAMETERS in traced.parts


def test_configurations_hang_on_the_seed_alone():
    first, again = (list(configurations(1, seed=3)) for _ in range(2))
    assert first == again
    assert first[0].kind in OBJECTIVES
