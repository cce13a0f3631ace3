"""GPUMemNet's rows: which are rebuilt, and what whole devices hold."""

import pytest

from benchmarks.published_gpumemnet import USABLE_BYTES, covers, forecast, why_not
from search.errors import InputError
from search.memory.device import ByteEstimate
from search.units import MIB

# Row 2286 of mlp_data_step2.csv.
MLP = {
    "id": "mlp",
    "input_size": 11,
    "output_size": 1,
    "hidden_layers": 3,
    "architecture": "bottleneck",
    "batch": 11,
    "activation": "tanh",
    "dropout_rate": 0.16,
    "use_dropout": True,
    "use_batch_norm": False,
    "total_parameters": 79,
    "max_gpu_mem_mib": 1451,
}
TRANSFORMER = {
    "id": "transformer",
    "hidden": 16,
    "layers": 1,
    "heads": 2,
    "ffn": 32,
    "vocab": 2**20,
    "classes": 3,
    "dropout": 0.1,
    "seq_len": 4,
    "batch": 2,
    "num_samples": 5,
}
NOTHING = ByteEstimate(low_bytes=0, expected_bytes=0, high_bytes=0, source="test")

# Two cuBLAS workspaces of 8.125 MiB, the forward and the backward thread's, share a segment of 20
# MiB; all else is small, in one of 2 MiB.
LEAST_BYTES = 22 * MIB


def test_a_small_network_holds_two_segments():
    predicted = forecast(MLP)
    assert predicted.reserved_bytes == LEAST_BYTES
    assert predicted.low_bytes <= predicted.expected_bytes <= predicted.high_bytes
    assert predicted.expected_bytes == MLP["max_gpu_mem_mib"] * MIB


def test_an_embedding_is_held_five_times():
    # Weight, gradient, two moments, and the square root of the second: 2^20 x 16 x 4 bytes each.
    predicted = forecast(TRANSFORMER, NOTHING)
    assert predicted.expected_bytes == predicted.reserved_bytes == LEAST_BYTES + 5 * 64 * MIB
    assert predicted.fits


def test_a_published_row_with_its_configuration_as_texts_is_the_same():
    config = {
        "input": "11",
        "output": "1",
        "depth": "3",
        "arch": "bottleneck",
        "batch": "11",
        "activation": "tanh",
        "dropout_p": "0.16",
        "dropout": "True",
        "batchnorm": "False",
    }
    row = {"id": "text", "config": config, "total_params": 79}
    assert forecast(row) == forecast(MLP)


@pytest.mark.parametrize(("left", "fits"), [(LEAST_BYTES, True), (LEAST_BYTES - 1, False)])
def test_what_does_not_fit_beside_the_context_is_said_with_its_need(left, fits):
    others = USABLE_BYTES - left
    context = ByteEstimate(
        low_bytes=others, expected_bytes=others, high_bytes=others, source="test"
    )
    predicted = forecast(MLP, context)
    assert predicted.fits is fits
    assert predicted.expected_bytes == others + LEAST_BYTES


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**MLP, "total_parameters": 80}, "the model built has 79 parameters, the row says 80"),
        ({**MLP, "use_batch_norm": True, "batch": 65}, "gone between two readings"),
        ({**MLP, "activation": "sine"}, "'sine' is not known"),
        ({**MLP, "architecture": "ring"}, "'ring' is not known"),
        ({**TRANSFORMER, "heads": 3}, "no multiple of 3 heads"),
        ({"id": "other", "group": "timm"}, "'hidden' is not given"),
    ],
)
def test_what_cannot_be_rebuilt_is_said(row, reason):
    assert not covers(row)
    assert reason in why_not(row)
    with pytest.raises(InputError, match="ask `covers` first"):
        forecast(row)
