import pytest

from objectives.pretrained_params import CausalParams, TransformersParams


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be at least 1, found 0"),
        ({"vocabulary": 255}, "vocabulary must be at least 256, the bytes, found 255"),
        ({"depth": 0}, "depth must be at least 1, found 0"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1, found 1.0"),
        ({"lora_rank": -1}, "lora_rank must be at least 0, found -1"),
        ({"lora_alpha": 0.0}, "lora_alpha must be above 0, found 0.0"),
        ({"lora_dropout": 1.0}, "lora_dropout must be from 0 to below 1, found 1.0"),
    ],
)
def test_faults_of_single_dimensions(params, message):
    for kind in (CausalParams, TransformersParams):
        with pytest.raises(ValueError, match=message):
            kind(**params)
