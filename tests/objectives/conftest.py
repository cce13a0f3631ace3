"""The modules beside these tests can be imported; tiny models of transformers to be tested on."""

import socket
import sys
from pathlib import Path

import pytest
import torch

from objectives.huggingface import CausalLanguageModel, SequenceClassifier

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def one_thread_and_no_network(monkeypatch):
    def refuse(*_):
        pytest.fail("nothing may be downloaded")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def language_models():
    from tiny_folder import TYPES

    return {
        name: CausalLanguageModel(config=values, held_out_tokens=1_500)
        for name, values in TYPES.items()
    }


@pytest.fixture(scope="session")
def classifiers():
    from tiny_folder import TYPES

    return {
        name: SequenceClassifier(config=values, held_out_samples=80)
        for name, values in TYPES.items()
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A GPT-2 with its tokenizer."""
    from tiny_folder import GPT2, write

    place = tmp_path_factory.mktemp("gpt2")
    write(place, GPT2)
    return place


@pytest.fixture(scope="session")
def from_folder(folder):
    return CausalLanguageModel(model=str(folder), held_out_tokens=1_500)
