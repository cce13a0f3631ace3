import pytest
import torch
from torch import nn

from objectives.language_model import Decoder, LanguageModelParams
from search.checkpointing import checkpoint, without_checkpoints
from search.errors import InputError

_WRAPPED = "_checkpoint_wrapped_module"


def _wrapped(choice, depth=5):
    model = Decoder(LanguageModelParams(width=8, heads=2, depth=depth))
    checkpoint(model, choice)
    names = [name for name, _ in model.named_modules() if name.endswith(_WRAPPED)]
    return [name.removesuffix(f".{_WRAPPED}") for name in names]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (False, []),
        (True, [f"blocks.{index}" for index in range(5)]),
        ("every-2", ["blocks.0", "blocks.2", "blocks.4"]),
        ("every-3", ["blocks.0", "blocks.3"]),
        ("every-4", ["blocks.0", "blocks.4"]),
        ("attention", [f"blocks.{index}.attention" for index in range(5)]),
    ],
)
def test_wraps_what_was_chosen(choice, expected):
    assert _wrapped(choice) == expected


@pytest.mark.parametrize("choice", [False, True, "every-2", "attention"])
def test_changes_no_gradient(choice):
    gradients = []
    for chosen in (False, choice):
        torch.manual_seed(0)
        model = Decoder(LanguageModelParams(width=8, heads=2, depth=3))
        checkpoint(model, chosen)
        model(torch.arange(12).view(2, 6)).square().mean().backward()
        gradients.append([param.grad for param in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_finds_the_attention_of_torchs_own_layers():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    checkpoint(model, "attention")
    names = [name for name, _ in model.named_modules() if name.endswith(_WRAPPED)]
    assert names == [f"layers.{index}.self_attn.{_WRAPPED}" for index in range(2)]
    model(torch.ones(2, 3, 8)).sum().backward()


@pytest.mark.parametrize("choice", [True, "attention"])
def test_it_can_be_taken_off_again(choice):
    model = Decoder(LanguageModelParams(width=8, heads=2, depth=3))
    before = [type(module) for module in model.modules()]
    checkpoint(model, choice)
    without_checkpoints(model)
    assert [type(module) for module in model.modules()] == before


def test_finds_attention_that_has_matrices_of_its_own():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 2))

    block = nn.ModuleDict({"attention": Attention(), "attention_norm": nn.LayerNorm(2)})
    model = nn.Sequential(nn.ModuleList([block]))
    checkpoint(model, "attention")
    names = [name for name, _ in model.named_modules() if name.endswith(_WRAPPED)]
    assert names == [f"0.0.attention.{_WRAPPED}"]


def test_a_model_without_blocks_is_refused():
    with pytest.raises(InputError, match=r"no nn\.ModuleList of blocks"):
        checkpoint(nn.Linear(1, 1), choice=True)


def test_blocks_without_attention_are_refused():
    model = nn.Sequential(nn.ModuleList([nn.Linear(1, 1)]))
    with pytest.raises(InputError, match="no module whose name or class says attention"):
        checkpoint(model, "attention")
