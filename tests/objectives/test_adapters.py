import math

import pytest
import torch
from tiny_folder import CPU, SMALL

from search.memory.trace import trace
from search.training import TrainingRun

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


class TestAdapters:
    @pytest.mark.parametrize("change", [{}, {"activation_checkpointing": True}])
    def test_a_trial_changes_adapters_alone(self, from_folder, change):
        params = {**SMALL, "lora_rank": 2, "learning_rate": 0.1, **change}
        run = TrainingRun(from_folder, params, num_tokens=256, device=CPU)
        before = {name: param.clone() for name, param in run.model.named_parameters()}
        while not run.done:
            run.step()
        changed = {
            name
            for name, param in run.model.named_parameters()
            if not torch.equal(before[name], param)
        }
        assert changed == {name for name in before if "lora_" in name}
        given = {id(each) for group in run.optimizers[0].param_groups for each in group["params"]}
        assert given == {id(p) for n, p in run.model.named_parameters() if "lora_" in n}
        assert all(param.grad is None for param in run.model.parameters())

    def test_the_head_of_a_classifier_is_trained_too(self, classifiers):
        model = classifiers["bert"].model({**SMALL, "lora_rank": 2})
        trained = {name for name, param in model.named_parameters() if param.requires_grad}
        heads = {name for name in trained if "lora_" not in name}
        assert {name.rsplit(".", 1)[1] for name in heads} == {"weight", "bias"}
        assert all("classifier.modules_to_save" in name for name in heads)

    def test_begin_as_the_model_they_are_put_beside(self, from_folder):
        whole, adapted = (from_folder.model({**SMALL, "lora_rank": rank}).eval() for rank in (0, 4))
        pieces = torch.randint(3, 200, (2, 9))
        torch.testing.assert_close(whole(input_ids=pieces).logits, adapted(input_ids=pieces).logits)

    def test_are_fp32_beside_weights_of_16_bits(self, from_folder):
        params = {**SMALL, "lora_rank": 2, "precision": "bf16-true"}
        run = TrainingRun(from_folder, params, num_tokens=64, device=CPU)
        kinds = {"lora_" in name: param.dtype for name, param in run.model.named_parameters()}
        assert kinds == {True: torch.float32, False: torch.bfloat16}
        assert math.isfinite(run.step().loss.item())

    def test_are_put_where_it_is_said(self, language_models):
        model = language_models["llama"].model(
            {**SMALL, "lora_rank": 2, "lora_target": "q_proj, v_proj"}
        )
        places = {
            name.split(".lora_")[0].split(".")[-1]
            for name, _ in model.named_parameters()
            if "lora_" in name
        }
        assert places == {"q_proj", "v_proj"}

    def test_need_no_gradients_nor_states_for_what_is_frozen(self, language_models):
        whole, adapted = (
            trace(language_models["llama"], {**SMALL, "lora_rank": rank}) for rank in (0, 2)
        )
        trained = 2 * sum(
            param.numel() * 4
            for param in language_models["llama"].model({**SMALL, "lora_rank": 2}).parameters()
            if param.requires_grad
        )
        assert trained <= adapted.parts["optimizer"] < 1.05 * trained
        assert adapted.parts["optimizer"] < whole.parts["optimizer"] / 4
