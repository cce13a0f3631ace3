import json

import pytest
from tiny_folder import GPT2, SMALL, write

from objectives.huggingface import CausalLanguageModel
from search.errors import InputError
from search.objective import Split

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


class TestFaults:
    def test_of_a_tokenizer_beyond_its_model(self, tmp_path):
        write(tmp_path, GPT2)
        values = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**values, "vocab_size": 90}))
        with pytest.raises(InputError, match=r"tokens up to .*, its model only 90"):
            CausalLanguageModel(model=str(tmp_path), held_out_tokens=1_500)

    def test_of_a_vocabulary_beside_a_tokenizer(self, from_folder):
        with pytest.raises(InputError, match="vocabulary 300: the folder has its own tokenizer"):
            from_folder.data({**SMALL, "vocabulary": 300}, Split.TRAIN, seed=0)
