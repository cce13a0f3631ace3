import pytest
import torch
from tiny_folder import BERT, GPT2, LLAMA

from objectives.huggingface import CausalLanguageModel, SequenceClassifier
from objectives.image_classifier import ImageClassifier
from objectives.language_model import LanguageModel
from objectives.seq2seq import Seq2Seq
from objectives.text_classifier import TextClassifier, TextRegressor
from search.contract import check_objective

BATCH = {"batch_size": 4}
TEXT = {**BATCH, "vocabulary": 256, "sequence_length": 16, "width": 16, "depth": 1, "heads": 2}
SHORT = {**BATCH, "sequence_length": 16}
OBJECTIVES = {
    "language model": (
        lambda: LanguageModel(held_out_tokens=1_500),
        {**BATCH, "width": 16, "heads": 2, "depth": 1, "sequence_length": 16},
        [
            {"dropout": 0.1, "activation_checkpointing": True},
            {"sequence_length": 300},
            {"packing": True},
            {"packing": True, "loss_chunks": 3},
        ],
    ),
    "pairs of texts": (
        lambda: Seq2Seq(held_out_pairs=60),
        {**BATCH, "vocabulary": 300, "width": 16, "heads": 2, "sequence_length": 16},
        [
            {"dropout": 0.1, "activation_checkpointing": True},
            {"sequence_length": 300, "bucketing": 4},
            {"shared_embedding": True, "encoder_depth": 1, "decoder_depth": 3},
        ],
    ),
    "image classifier": (
        lambda: ImageClassifier(held_out_samples=80),
        {**BATCH, "image_size": 16, "channels": 2, "width": 8},
        [
            {"activation_checkpointing": True},
            {"image_size": 40, "depth": 3},
            {"shift": 0.1, "rotation": 20.0, "flip": True},
        ],
    ),
    "text classifier": (
        lambda: TextClassifier(held_out_samples=80),
        TEXT,
        [
            {"variant": "transformer", "dropout": 0.1, "activation_checkpointing": True},
            {"variant": "transformer", "precision": "bf16-mixed"},
            {"vocabulary": 300, "sequence_length": 70},
        ],
    ),
    "text regressor": (
        lambda: TextRegressor(held_out_samples=80),
        TEXT,
        [{"variant": "transformer"}, {"precision": "bf16-true"}],
    ),
    "gpt2": (
        lambda: CausalLanguageModel(config=GPT2, held_out_tokens=1_500),
        SHORT,
        [
            {"lora_rank": 2, "lora_dropout": 0.1, "activation_checkpointing": True},
            {"samples": "packed", "attention": "eager"},
            {"samples": "padded", "bucketing": 2, "sequence_length": 70},
        ],
    ),
    "llama": (
        lambda: CausalLanguageModel(config=LLAMA, held_out_tokens=1_500),
        SHORT,
        [
            {"vocabulary": 300, "depth": 1, "activation_checkpointing": "attention"},
            {"samples": "packed", "lora_rank": 2, "precision": "bf16-true"},
        ],
    ),
    "bert": (
        lambda: SequenceClassifier(config=BERT, held_out_samples=80),
        SHORT,
        [
            {"lora_rank": 2, "activation_checkpointing": True},
            {"attention": "eager", "bucketing": 2, "dropout": 0.0},
        ],
    ),
    "llama as a classifier": (
        lambda: SequenceClassifier(config=LLAMA, held_out_samples=80),
        SHORT,
        [{"lora_rank": 2, "precision": "bf16-true"}],
    ),
}
"""How each is opened, its dimensions at their smallest, and changes that only it knows."""

EVERY_ONE = [{}, {"micro_batch_size": 2}, {"precision": "bf16-mixed"}]


@pytest.fixture(scope="module")
def opened():
    """Each objective, opened when it is first asked for."""
    found = {}

    def get(name):
        if name not in found:
            found[name] = OBJECTIVES[name][0]()
        return found[name]

    return get


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (name, change)
        for name, (_, _, its_own) in OBJECTIVES.items()
        for change in [*EVERY_ONE, *its_own]
    ],
)
def test_every_objective_keeps_the_contract(opened, name, change):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    check_objective(opened(name), {**OBJECTIVES[name][1], **change})
    torch.set_num_threads(before)
