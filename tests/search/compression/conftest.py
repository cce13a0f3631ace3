"""The objectives on data that are theirs anyway, each with a small configuration."""

import pytest
from torch import nn

from objectives.image_classifier import ImageClassifier
from objectives.language_model import LanguageModel
from objectives.seq2seq import Seq2Seq
from objectives.text_classifier import TextClassifier
from search.objective import Split

SMALL = {"batch_size": 4, "micro_batch_size": 4}
CASES = {
    "language model": (LanguageModel, {"width": 32, "depth": 2, "sequence_length": 16}),
    "chunked loss": (LanguageModel, {"width": 32, "depth": 1, "loss_chunks": 4}),
    "text encoder": (TextClassifier, {"variant": "transformer", "width": 32, "vocabulary": 256}),
    "seq2seq": (Seq2Seq, {"width": 32, "vocabulary": 300}),
    "shared embedding": (Seq2Seq, {"width": 32, "vocabulary": 300, "shared_embedding": True}),
    "images": (ImageClassifier, {"image_size": 20}),
}


@pytest.fixture(params=CASES)
def case(request):
    """An objective, a whole configuration, and a batch of its training data."""
    kind, params = CASES[request.param]
    objective, params = kind(), {**SMALL, **params}
    tokens = 4 * objective.tokens_per_sample(params)
    batch = next(iter(objective.data(params, Split.TRAIN, seed=0, num_tokens=tokens)))
    return objective, params, batch


class Net(nn.Module):
    """Layers `a`, `b`, `c` by their order, and what is computed with them."""

    def __init__(self, compute, *layers):
        super().__init__()
        self.compute = compute
        for name, layer in zip("abc", layers, strict=False):
            self.add_module(name, layer)

    def forward(self, x):
        return self.compute(self, x)


@pytest.fixture
def net():
    """Makes a model of a function of the model and its input, and of a few layers."""
    return Net
