import pytest
import torch
from tiny_folder import CPU, GPT2, LLAMA, SMALL, write

from objectives.huggingface import CausalLanguageModel, SequenceClassifier
from search.training import TrainingRun

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


class TestFolder:
    def test_its_weights_are_what_is_trained_on(self, from_folder, folder):
        from transformers import AutoModelForCausalLM

        saved = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for name, tensor in from_folder.model(SMALL).state_dict().items():
            assert torch.equal(tensor, saved[name])

    def test_other_weights_are_other_data(self, from_folder, tmp_path):
        write(tmp_path, GPT2, n_inner=8)
        other = CausalLanguageModel(model=str(tmp_path), held_out_tokens=1_500)
        names = ("sha256", "model_sha256")
        same = [other.provenance[name] == from_folder.provenance[name] for name in names]
        assert same == [True, False]

    def test_fewer_blocks_are_the_first_ones(self, from_folder, folder):
        from transformers import AutoModelForCausalLM

        saved = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        cut = from_folder.model({**SMALL, "depth": 1})
        assert len(cut.transformer.h) == 1
        first = "transformer.h.0.attn.c_attn.weight"
        assert torch.equal(cut.state_dict()[first], saved[first])

    def test_a_language_model_becomes_a_classifier_with_a_new_head(self, folder):
        classifier = SequenceClassifier(model=str(folder), held_out_samples=80)
        found = classifier.model({**SMALL, "seed": 1})
        assert found.score.out_features == classifier.num_classes
        assert found.config.id2label[0] == classifier.texts.classes[0]

    def test_sixteen_bits_are_read_into_whichever_precision(self, tmp_path):
        write(tmp_path, LLAMA, dtype="bfloat16")
        objective = CausalLanguageModel(model=str(tmp_path), held_out_tokens=1_500)
        for precision, dtype in (("32-true", torch.float32), ("bf16-true", torch.bfloat16)):
            run = TrainingRun(
                objective, {**SMALL, "precision": precision}, num_tokens=64, device=CPU
            )
            assert {param.dtype for param in run.model.parameters()} == {dtype}
            # the angles of positions would be wrong in 8 bits
            assert run.model.model.rotary_emb.inv_freq.dtype == torch.float32
