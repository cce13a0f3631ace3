import torch

from benchmarks.memory_speed import Sized


def test_a_model_has_the_parameters_of_the_published_dimensions():
    params = {"width": 768, "depth": 12, "heads": 12}
    with torch.device("meta"):
        model = Sized(50_257).model(params)
    # Each block: 12 x width^2 weights, 9 x width biases, 4 x width of norms; the last norm; the
    # table of values, and the last layer, which is not tied to it.
    expected = 12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 2 * 50_257 * 768
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
