"""The rebuilt Transformer: its size, and which batches its script runs."""

import pytest

from benchmarks.gpumemnet_transformer import TransformerSetting, batch_sizes, num_parameters

TINY = TransformerSetting(
    width=4,
    layers=1,
    heads=2,
    feedforward=8,
    vocabulary=10,
    classes=2,
    dropout=0.1,
    length=3,
    batch=2,
    num_samples=5,
)


def test_the_parameters_are_those_of_the_script():
    # Embedding 10 x 4, positions 3 x 4; attention 12 x 4 + 12 and 4 x 4 + 4; feed-forward 8 x 4 + 8
    # and 4 x 8 + 4; two norms of 2 x 4; head 2 x 4 + 2.
    assert num_parameters(TINY) == 40 + 12 + 60 + 20 + 40 + 36 + 16 + 10


@pytest.mark.parametrize(
    ("num_samples", "batch", "sizes"),
    [
        (1000, 32, [32, 32, 8, 32, 32]),
        (64, 32, [32, 32, 32, 32]),
        (40, 32, [32, 8, 32, 8]),
        (32, 32, [32, 32]),
        (None, 32, [32, 32, 32, 32]),
    ],
)
def test_an_epoch_ends_with_what_remains_and_the_next_one_begins(num_samples, batch, sizes):
    assert list(batch_sizes(num_samples, batch)) == sizes
