"""What is predicted for the objectives of this project against what they use on this CPU."""

import pytest

from search.results import PredictedMemory

_PREDICTED_AND_MEASURED = """
    from dataclasses import asdict
    from objectives.huggingface import CausalLanguageModel, SequenceClassifier
    from objectives.image_classifier import ImageClassifier
    from objectives.text_classifier import TextClassifier, TextRegressor
    from search.memory.machine import CpuMemory
    from search.memory.prediction import predict
    from search.training import TrainingRun
    objective = OBJECTIVE
    found = []
    for params in [CONFIGURATIONS[0], *CONFIGURATIONS]:
        with measure_peak(device) as peak:
            run = TrainingRun(objective, params, num_tokens=10**9, device=device.torch_device)
            run.step()
            run.step()
            run.evaluate()
            del run
        release_memory(device)
        found.append(peak.num_bytes)
    machine = CpuMemory(overhead_bytes=overhead_bytes(device))
    predicted = [predict(objective, params, machine) for params in CONFIGURATIONS]
    print(json.dumps([[asdict(one), size] for one, size in zip(predicted, found[1:])]))
"""
"""Measured before anything is predicted: a trace leaves holes on the heap. The first run of a
process is left out: what it imports on the way is its own."""

IMAGES = {"batch_size": 128, "image_size": 48}
TEXTS = {"vocabulary": 256, "batch_size": 64, "sequence_length": 64}
GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 128, "n_head": 4}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 3,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
ADAPTED = {"batch_size": 16, "sequence_length": 128, "dropout": 0.0, "lora_rank": 8}
"""Models of transformers: all weights are trained where the rank is 0."""
TRANSFORMER = {**TEXTS, "variant": "transformer", "batch_size": 32}


@pytest.mark.parametrize(
    ("objective", "configurations"),
    [
        (
            "ImageClassifier()",
            [
                {**IMAGES, "rotation": 10.0, "shift": 0.1},
                {**IMAGES, "activation_checkpointing": True, "channels": 16},
                {**IMAGES, "depth": 3, "optimizer": "sgd", "channels": 16},
            ],
        ),
        (
            "TextClassifier()",
            [
                {**TEXTS, "width": 768},
                {**TRANSFORMER, "sequence_length": 96, "depth": 1},
            ],
        ),
        (
            "TextRegressor()",
            [
                {**TEXTS, "width": 768, "optimizer": "sgd"},
                {**TRANSFORMER, "depth": 1, "dropout": 0.0, "width": 128},
            ],
        ),
        (
            f"CausalLanguageModel(config={GPT2}, held_out_tokens=3_000)",
            [
                ADAPTED,
                {**ADAPTED, "lora_rank": 0},
                {**ADAPTED, "activation_checkpointing": True, "samples": "packed"},
            ],
        ),
        pytest.param(
            f"SequenceClassifier(config={BERT}, held_out_samples=64)",
            [
                {**ADAPTED, "batch_size": 64, "sequence_length": 64},
                {**ADAPTED, "batch_size": 64, "sequence_length": 64, "lora_rank": 0},
            ],
            marks=pytest.mark.xfail(
                strict=False, reason="predicted 5 to 7 % too low now and then; not explained yet"
            ),
        ),
    ],
)
def test_is_what_is_measured(fresh, objective, configurations):
    code = _PREDICTED_AND_MEASURED.replace("CONFIGURATIONS", repr(configurations))
    error = 0.06 if "config" in objective else 0.08
    for state, measured_bytes in fresh(code.replace("OBJECTIVE", objective)):
        predicted = PredictedMemory(**state)
        assert predicted.expected_bytes == pytest.approx(measured_bytes, rel=error)
        assert predicted.low_bytes <= measured_bytes <= predicted.high_bytes
