import json

import pytest
from tiny_folder import BERT, GPT2, write

from objectives.huggingface import CausalLanguageModel
from search.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


def opened(**data):
    return CausalLanguageModel(**{"held_out_tokens": 1_500, **data})


class TestFaults:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({}, "one of model and config must be given, found neither"),
            ({"model": "x", "config": GPT2}, "one of model and config must be given, found both"),
            (
                {"model": "meta-llama/Llama-3.2-1B"},
                r"nothing is downloaded \(fetch it first: hf download meta-llama/Llama-3.2-1B",
            ),
            ({"config": "none.json"}, r"none.json: cannot be read: No such file"),
            ({"config": {}}, "model_type must be one that transformers knows, found None"),
            ({"config": {"model_type": "gpt-2"}}, r"found 'gpt-2' \(did you mean 'gpt2'\?\)"),
            (
                {"config": {**GPT2, "n_layers": 2}},
                r"gpt2 has no 'n_layers' \(did you mean 'n_layer'\?\)",
            ),
            (
                {"config": {**GPT2, "n_embd": "wide"}},
                "transformers builds no gpt2 model of this config: TypeError: ",
            ),
            ({"config": {"model_type": "vit"}}, "model_type vit has no causal language model"),
            (
                {"config": GPT2, "evaluation_context": 301},
                "evaluation_context 301 is more than the 300 positions of this model",
            ),
        ],
    )
    def test_of_what_there_is_to_train(self, data, message):
        with pytest.raises(InputError, match=message):
            opened(**data)

    def test_of_a_folder(self, folder, tmp_path):
        for name, message in (
            ("config.json", "config.json: cannot be read"),
            ("tokenizer.json", r"has no tokenizer.json \(write one there"),
            ("model.safetensors", r"Error no file named .* model.safetensors"),
        ):
            place = tmp_path / name.partition(".")[0]
            place.mkdir()
            for file in folder.iterdir():
                if file.name != name:
                    (place / file.name).write_bytes(file.read_bytes())
            with pytest.raises(InputError, match=message):
                opened(model=str(place))

    def test_of_weights_that_are_not_there_or_quantized(self, tmp_path):
        write(tmp_path, BERT, "AutoModelForSequenceClassification")
        with pytest.raises(InputError, match=r"no fitting weights for 'cls\.predictions"):
            opened(model=str(tmp_path))
        values = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**values, "quantization_config": {}}))
        with pytest.raises(InputError, match="its weights are quantized"):
            opened(model=str(tmp_path))
