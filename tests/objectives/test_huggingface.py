import json
import math
import socket
import threading
import warnings

import pytest
import torch
from tiny_folder import BERT, GPT2, LLAMA, write
from torch import nn
from torch.nn import functional

from objectives.huggingface import CausalLanguageModel, SequenceClassifier
from objectives.packing import IGNORED
from search.contract import check_objective
from search.errors import InputError
from search.memory.device import device_here
from search.memory.trace import Phase, trace
from search.objective import Split, load_objective
from search.training import TrainingRun
from search.trials.production import ProductionJob, train

CPU = torch.device("cpu")
SMALL = {"batch_size": 4, "sequence_length": 16}
TYPES = {"gpt2": GPT2, "llama": LLAMA, "bert": BERT}


@pytest.fixture(autouse=True)
def one_thread_and_no_network(monkeypatch):
    def refuse(*_):
        pytest.fail("nothing may be downloaded")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def language_models():
    return {
        name: CausalLanguageModel(config=values, held_out_tokens=1_500)
        for name, values in TYPES.items()
    }


@pytest.fixture(scope="module")
def classifiers():
    return {
        name: SequenceClassifier(config=values, held_out_samples=80)
        for name, values in TYPES.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 with its tokenizer."""
    place = tmp_path_factory.mktemp("gpt2")
    write(place, GPT2)
    return place


@pytest.fixture(scope="module")
def from_folder(folder):
    return CausalLanguageModel(model=str(folder), held_out_tokens=1_500)


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

    def test_other_configs_are_other_settings_of_a_kept_prediction(self, language_models):
        deeper = CausalLanguageModel(config={**GPT2, "n_inner": 8}, held_out_tokens=1_500)
        assert deeper.settings != language_models["gpt2"].settings

    def test_the_same_config_comes_from_a_file(self, tmp_path, language_models):
        (tmp_path / "config.json").write_text(json.dumps(GPT2))
        read = CausalLanguageModel(config=str(tmp_path / "config.json"), held_out_tokens=1_500)
        assert read.settings == language_models["gpt2"].settings


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

    def test_a_text_begins_with_its_mark_and_keeps_it_when_cut(self, classifiers, tmp_path):
        batch = next(classifiers["bert"].data(SMALL, Split.TRAIN, seed=0))
        assert (batch["tokens"][:, 0] == 1).all()
        write(tmp_path, BERT, "AutoModelForSequenceClassification")
        cut = SequenceClassifier(model=str(tmp_path), held_out_samples=80)
        tokens = next(cut.data({**SMALL, "sequence_length": 6}, Split.TRAIN, seed=0))["tokens"]
        assert (tokens[0, 0], tokens[0, -1], tokens.shape[1]) == (0, 1, 6)


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

    def test_of_a_tokenizer_beyond_its_model(self, tmp_path):
        write(tmp_path, GPT2)
        values = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**values, "vocab_size": 90}))
        with pytest.raises(InputError, match=r"tokens up to .*, its model only 90"):
            opened(model=str(tmp_path))

    @pytest.mark.parametrize(
        ("name", "params", "message"),
        [
            ("gpt2", {"sequence_length": 301}, "sequence_length 301 is more than the 300"),
            ("bert", {"samples": "packed"}, "samples packed: bert makes its mask of attention"),
            ("gpt2", {"lora_rank": 2, "lora_target": "none"}, "lora_target none: .arget modules"),
        ],
    )
    def test_of_dimensions(self, language_models, name, params, message):
        objective, params = language_models[name], {**SMALL, **params}
        with pytest.raises(InputError, match=message):
            check_objective(objective, params)

    def test_of_a_vocabulary_beside_a_tokenizer(self, from_folder):
        with pytest.raises(InputError, match="vocabulary 300: the folder has its own tokenizer"):
            from_folder.data({**SMALL, "vocabulary": 300}, Split.TRAIN, seed=0)

    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"sequence_length": 0}, "sequence_length must be at least 1, found 0"),
            ({"vocabulary": 255}, "vocabulary must be at least 256, the bytes, found 255"),
            ({"depth": 0}, "depth must be at least 1, found 0"),
            ({"dropout": 1.0}, "dropout must be from 0 to below 1, found 1.0"),
            ({"lora_rank": -1}, "lora_rank must be at least 0, found -1"),
            ({"lora_alpha": 0.0}, "lora_alpha must be above 0, found 0.0"),
            ({"lora_dropout": 1.0}, "lora_dropout must be from 0 to below 1, found 1.0"),
        ],
    )
    def test_of_single_dimensions(self, params, message):
        for kind in (CausalLanguageModel, SequenceClassifier):
            with pytest.raises(ValueError, match=message):
                kind.parameters(**params)


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
