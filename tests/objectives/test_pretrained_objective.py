import json

import pytest
from tiny_folder import GPT2, SMALL

from objectives.huggingface import CausalLanguageModel
from search.contract import check_objective
from search.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


class TestSettings:
    def test_other_configs_are_other_settings_of_a_kept_prediction(self, language_models):
        deeper = CausalLanguageModel(config={**GPT2, "n_inner": 8}, held_out_tokens=1_500)
        assert deeper.settings != language_models["gpt2"].settings

    def test_the_same_config_comes_from_a_file(self, tmp_path, language_models):
        (tmp_path / "config.json").write_text(json.dumps(GPT2))
        read = CausalLanguageModel(config=str(tmp_path / "config.json"), held_out_tokens=1_500)
        assert read.settings == language_models["gpt2"].settings


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("gpt2", {"sequence_length": 301}, "sequence_length 301 is more than the 300"),
        ("bert", {"samples": "packed"}, "samples packed: bert makes its mask of attention"),
        ("gpt2", {"lora_rank": 2, "lora_target": "none"}, "lora_target none: .arget modules"),
    ],
)
def test_faults_of_dimensions(language_models, name, params, message):
    objective, params = language_models[name], {**SMALL, **params}
    with pytest.raises(InputError, match=message):
        check_objective(objective, params)
