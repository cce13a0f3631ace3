import math

import pytest
import torch
from tiny_folder import CPU, SMALL, TYPES
from torch import nn
from torch.nn import functional

from objectives.huggingface import CausalLanguageModel, SequenceClassifier
from objectives.packing import IGNORED
from search.memory.trace import Phase, trace
from search.objective import Split, load_objective
from search.training import TrainingRun

pytestmark = pytest.mark.usefixtures("one_thread_and_no_network")


def new(objective, **params):
    """A model in evaluation mode, of weights large enough to tell one token from another."""
    torch.manual_seed(0)
    model = objective.model({**SMALL, **params}).eval()
    for param in model.parameters():
        if param.dim() > 1:
            nn.init.normal_(param, std=0.3)
    return model


class TestObjectives:
    @pytest.mark.parametrize("kind", [CausalLanguageModel, SequenceClassifier])
    def test_are_found_by_their_path(self, kind):
        assert load_objective(f"objectives.huggingface:{kind.__name__}") is kind

    def test_count_tokens_and_texts(self, language_models, classifiers):
        objective = language_models["gpt2"]
        assert objective.tokens_per_sample(SMALL) == 16
        assert objective.num_tokens(objective.batch(SMALL, Split.TRAIN)) == 64
        classifier = classifiers["bert"]
        assert classifier.tokens_per_sample(SMALL) == 1
        assert classifier.num_tokens(classifier.batch(SMALL, Split.TRAIN)) == 4


class TestBitsPerByte:
    """Of a model that finds every token as likely, worked by hand."""

    @pytest.mark.parametrize("params", [{}, {"vocabulary": 300}, None])
    def test_divide_by_the_bytes_of_the_text_whatever_cuts_it(
        self, language_models, from_folder, params
    ):
        objective = from_folder if params is None else language_models["gpt2"]
        model = objective.model({**SMALL, **(params or {})}).eval()
        nn.init.zeros_(model.lm_head.weight)
        batches = list(objective.data({**SMALL, **(params or {})}, Split.HELD_OUT, seed=0))
        num_bytes = sum(int(batch["num_bytes"].sum()) for batch in batches)
        first = 0 if params is None else 1  # a mark of no bytes is no target, or the first piece
        assert num_bytes == 1_500 - first or (params and 1_480 < num_bytes < 1_500)
        num_tokens = sum(map(objective.num_tokens, batches))
        bits = num_tokens * math.log2(model.config.vocab_size) / num_bytes
        with torch.no_grad():
            found = objective.evaluate(model, batches)["bits_per_byte"]
        assert found == pytest.approx(bits, rel=1e-5)

    def test_fewer_pieces_stand_for_the_same_text(self, language_models):
        counts = []
        for vocabulary in (256, 1_000):
            params = {**SMALL, "vocabulary": vocabulary}
            batches = language_models["gpt2"].data(params, Split.HELD_OUT, seed=0)
            counts.append(sum(batch["targets"].numel() for batch in batches))
        assert counts[1] < 0.7 * counts[0]


class TestSamples:
    @pytest.mark.parametrize("attention", ["sdpa", "eager"])
    @pytest.mark.parametrize("name", ["gpt2", "llama"])
    def test_documents_in_a_window_do_not_see_each_other(self, language_models, name, attention):
        objective = language_models[name]
        model = new(objective, attention=attention, dropout=0.0)
        first, second = torch.randint(2, 258, (1, 5)), torch.randint(2, 258, (1, 4))
        batch = {
            "inputs": torch.cat([first, second], dim=1),
            "targets": torch.randint(2, 258, (1, 9)),
            "documents": torch.tensor([[0] * 5 + [1] * 4]),
        }
        apart = [
            objective.loss(model, {"inputs": inputs, "targets": targets}) * targets.numel()
            for inputs, targets in (
                (first, batch["targets"][:, :5]),
                (second, batch["targets"][:, 5:]),
            )
        ]
        torch.testing.assert_close(objective.loss(model, batch), sum(apart) / 9)

    @pytest.mark.parametrize("name", TYPES)
    def test_padded_documents_cost_what_each_costs_alone(self, language_models, name):
        objective = language_models[name]
        model = new(objective, dropout=0.0)
        inputs = torch.randint(2, 258, (2, 6))
        targets = torch.randint(2, 258, (2, 6))
        targets[1, 4:] = IGNORED
        alone = [
            objective.loss(
                model, {"inputs": inputs[row, None, :n], "targets": targets[row, None, :n]}
            )
            for row, n in ((0, 6), (1, 4))
        ]
        whole = objective.loss(model, {"inputs": inputs, "targets": targets})
        torch.testing.assert_close(whole, (6 * alone[0] + 4 * alone[1]) / 10)

    @pytest.mark.parametrize("name", TYPES)
    def test_no_position_sees_what_comes_next(self, language_models, name):
        model = new(language_models[name])
        one = torch.randint(2, 258, (1, 8))
        other = one.clone()
        other[0, 5:] = torch.randint(2, 258, (3,))
        logits = [model(input_ids=each).logits for each in (one, other)]
        torch.testing.assert_close(logits[0][:, :5], logits[1][:, :5])
        assert not torch.allclose(logits[0][:, 5:], logits[1][:, 5:])

    def test_padded_batches_begin_with_the_longest(self, language_models):
        objective = language_models["gpt2"]
        params = {**SMALL, "samples": "padded", "sequence_length": 300, "bucketing": 2}
        first = next(objective.data(params, Split.TRAIN, seed=3))
        assert first["inputs"].shape == objective.batch(params, Split.TRAIN)["inputs"].shape

    @pytest.mark.parametrize("name", TYPES)
    def test_a_classifier_does_not_look_at_padding(self, classifiers, name):
        model = new(classifiers[name])
        texts = torch.randint(2, 258, (2, 7))
        mask = torch.ones_like(texts)
        texts[1, 4:], mask[1, 4:] = 0, 0
        both = model(input_ids=texts, attention_mask=mask).logits
        alone = model(input_ids=texts[1:, :4], attention_mask=mask[1:, :4]).logits
        torch.testing.assert_close(both[1:], alone)


class TestCheckpointing:
    @pytest.mark.parametrize("choice", [True, "every-2", "attention"])
    @pytest.mark.parametrize("name", TYPES)
    def test_gradients_are_the_same(self, classifiers, name, choice):
        found = []
        for chosen in (False, choice):
            params = {**SMALL, "dropout": 0.0, "activation_checkpointing": chosen}
            run = TrainingRun(classifiers[name], params, num_tokens=8, device=CPU)
            run.step()
            found.append(run.model.state_dict())
        assert found[0].keys() == found[1].keys()
        for key, tensor in found[0].items():
            torch.testing.assert_close(tensor, found[1][key])

    def test_keeps_less(self, language_models):
        params = {**SMALL, "batch_size": 32, "attention": "eager"}
        kept = [
            trace(language_models["llama"], {**params, "activation_checkpointing": choice})
            for choice in (False, True)
        ]
        stepping = [each.peak_bytes_by_phase[Phase.STEP_2] for each in kept]
        assert stepping[1] < 0.8 * stepping[0]


def test_learns(language_models):
    objective = language_models["llama"]
    params = {"batch_size": 16, "sequence_length": 32, "learning_rate": 1e-2}
    run = TrainingRun(objective, params, num_tokens=20_000, device=CPU)
    first = run.step().loss.item()
    while not run.done:
        last = run.step().loss.item()
    assert first == pytest.approx(math.log(258), rel=0.02)
    assert last < 0.75 * first


def test_logits_of_a_batch_are_those_of_transformers(language_models):
    """What is trained is the model's own loss."""
    objective = language_models["gpt2"]
    model = new(objective, dropout=0.0)
    window = torch.randint(2, 258, (3, 9))
    ours = objective.loss(model, {"inputs": window[:, :-1], "targets": window[:, 1:]})
    theirs = model(input_ids=window, labels=window).loss
    torch.testing.assert_close(ours, theirs)
    logits = model(input_ids=window[:, :-1]).logits
    torch.testing.assert_close(
        ours, functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    )
