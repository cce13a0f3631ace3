import pytest
import torch

from objectives.language_model import LanguageModel
from search.contract import check_objective

SMALL = {"width": 16, "heads": 2, "depth": 1, "sequence_length": 16, "batch_size": 4}


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    return LanguageModel(held_out_tokens=1_500)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"micro_batch_size": 2},
        {"dropout": 0.1, "activation_checkpointing": True},
        {"precision": "bf16-mixed"},
        {"sequence_length": 300},
    ],
)
def test_language_model(language_model, change):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    check_objective(language_model, {**SMALL, **change})
    torch.set_num_threads(before)
