import threading
import warnings

import pytest
import torch
from tiny_folder import SMALL

from search.memory.device import device_here
from search.objective import Split
from search.trials.production import ProductionJob, train

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


def trained(objective, params, folder, *, steps=None, num_tokens=256):
    """A production run, stopped after so many steps."""
    stop, seen = threading.Event(), []

    def on_step(tokens_seen, _loss):
        seen.append(tokens_seen)
        if len(seen) == steps:
            stop.set()

    job = ProductionJob(
        objective=objective,
        params={**SMALL, **params},
        num_tokens=num_tokens,
        num_threads=1,
        device=device_here(),
        folder=folder,
    )
    return train(job, on_step=on_step, stop=stop)


class TestProduction:
    def test_a_stopped_run_goes_on_to_the_same_adapters(self, from_folder, tmp_path):
        params = {"lora_rank": 2, "lora_dropout": 0.1}
        trained(from_folder, params, tmp_path / "whole")
        assert trained(from_folder, params, tmp_path / "cut", steps=2) is None
        trained(from_folder, params, tmp_path / "cut")
        states = [torch.load(tmp_path / each / "model.pt") for each in ("whole", "cut")]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())

    @pytest.mark.parametrize("params", [{}, {"activation_checkpointing": True}, {"lora_rank": 2}])
    def test_what_it_writes_is_what_transformers_loads(self, language_models, tmp_path, params):
        from transformers import AutoModelForCausalLM

        finished = trained(language_models["gpt2"], params, tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
        batches = language_models["gpt2"].data(SMALL, Split.HELD_OUT, seed=0)
        with torch.no_grad():
            found = language_models["gpt2"].evaluate(loaded, batches)
        assert found["bits_per_byte"] == pytest.approx(finished.metrics["bits_per_byte"], rel=1e-4)

    def test_adapters_are_loaded_beside_the_weights_of_their_folder(self, from_folder, tmp_path):
        from peft import AutoPeftModelForCausalLM

        params = {"lora_rank": 2, "learning_rate": 0.1, "activation_checkpointing": True}
        finished = trained(from_folder, params, tmp_path)
        written = {file.name for file in (tmp_path / "model").iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= written
        assert "model.safetensors" not in written
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peft, when it loads a tokenizer's sizes
            loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "model").eval()
        batches = from_folder.data(SMALL, Split.HELD_OUT, seed=0)
        with torch.no_grad():
            found = from_folder.evaluate(loaded, batches)
        assert found["bits_per_byte"] == pytest.approx(finished.metrics["bits_per_byte"], rel=1e-4)

    def test_a_classifier_keeps_the_names_of_its_classes(self, classifiers, tmp_path):
        from transformers import AutoModelForSequenceClassification

        trained(classifiers["bert"], {}, tmp_path, num_tokens=16)
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
        names = classifiers["bert"].texts.classes
        assert tuple(loaded.config.id2label.values()) == names
