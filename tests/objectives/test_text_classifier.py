import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from objectives.text_classifier import TextClassifier, TextNet, TextParams, TextRegressor
from search.metric import Goal
from search.objective import Split, load_objective
from search.training import TrainingRun

CPU = torch.device("cpu")
VARIANTS = ("embedding", "transformer")
SMALL = {"vocabulary": 256, "sequence_length": 12, "width": 8, "depth": 1, "heads": 2}


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    return TextClassifier(held_out_samples=200)


@pytest.fixture(scope="module")
def regressor() -> TextRegressor:
    return TextRegressor(held_out_samples=200)


@pytest.fixture(autouse=True)
def seeded():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def net(num_outputs=3, **params) -> TextNet:
    return TextNet(TextParams(**{**SMALL, **params}), num_outputs=num_outputs)


class TestObjective:
    @pytest.mark.parametrize("kind", [TextClassifier, TextRegressor])
    def test_is_found_by_its_path(self, kind):
        assert load_objective(f"objectives.text_classifier:{kind.__name__}") is kind

    def test_goals(self):
        goals = {m.name: m.goal for kind in (TextClassifier, TextRegressor) for m in kind.metrics}
        assert goals == {
            "accuracy": Goal.MAX,
            "negative_log_likelihood": Goal.MIN,
            "mean_squared_error": Goal.MIN,
            "mean_absolute_error": Goal.MIN,
        }

    def test_counts_texts(self, classifier):
        batch = classifier.batch({**SMALL, "batch_size": 6}, Split.TRAIN)
        assert batch["pieces"].shape == (6, 12)
        assert (classifier.num_tokens(batch), classifier.tokens_per_sample(SMALL)) == (6, 1)

    def test_a_vocabulary_is_learned_from_what_is_trained_on(self, classifier):
        fewer = next(classifier.data({**SMALL, "vocabulary": 512}, Split.TRAIN, seed=0))["pieces"]
        bytes_themselves = next(classifier.data(SMALL, Split.TRAIN, seed=0))["pieces"]
        assert 256 < fewer.max() <= 512
        assert bytes_themselves.max() <= 256
        # the same texts, in fewer pieces
        assert (fewer != 0).sum() < (bytes_themselves != 0).sum()

    def test_learns_classes(self, classifier):
        params = {**SMALL, "vocabulary": 1024, "sequence_length": 32, "width": 32}
        training = {"learning_rate": 1e-2, "batch_size": 64}
        run = TrainingRun(classifier, {**params, **training}, num_tokens=24_000, device=CPU)
        first = run.step().loss.item()
        while not run.done:
            last = run.step().loss.item()
        num_classes = len(classifier.texts.classes)
        assert first == pytest.approx(math.log(num_classes), rel=0.1)
        assert last < 0.8 * first
        assert run.evaluate()["accuracy"] > 4 / num_classes

    def test_learns_numbers(self, regressor):
        params = {**SMALL, "vocabulary": 1024, "sequence_length": 32, "width": 32}
        training = {"learning_rate": 1e-2, "batch_size": 64}
        run = TrainingRun(regressor, {**params, **training}, num_tokens=15_000, device=CPU)
        while not run.done:
            run.step()
        spread = regressor.texts.targets[Split.HELD_OUT].var()
        assert run.evaluate()["mean_squared_error"] < 0.9 * spread

    def test_a_transformer_learns_what_no_mean_can_tell(self, tmp_path):
        """Whether 'a' comes before 'b'."""
        random = np.random.default_rng(0)
        rows = []
        for _ in range(600):
            letters = random.choice(list("xyz"), 6)
            first, second = sorted(random.choice(6, 2, replace=False))
            label = int(random.integers(2))
            letters[first], letters[second] = "ab" if label else "ba"
            rows.append({"text": "".join(letters), "label": label})
        file = tmp_path / "order.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        objective = TextClassifier(file=str(file))
        found = {}
        for variant in VARIANTS:
            sizes = {"variant": variant, "width": 32, "sequence_length": 6, "dropout": 0.0}
            params = {**SMALL, **sizes, "learning_rate": 5e-3, "batch_size": 32}
            run = TrainingRun(objective, params, num_tokens=8_000, device=CPU)
            while not run.done:
                run.step()
            found[variant] = run.evaluate()["accuracy"]
        assert found["embedding"] < 0.65
        assert found["transformer"] > 0.9


class TestEvaluation:
    def test_golden_accuracy(self, classifier):
        # probabilities of the right class: 0.5, 0.25 and 0.75
        logits_BK = torch.tensor([[0.5, 0.5 / 9], [0.25, 0.75], [0.25, 0.75]]).log()
        logits_BK[0, 1] = math.log(0.5) - 1e-6
        targets_B = torch.tensor([0, 0, 1])
        batches = [
            {"pieces": logits_BK[part], "targets": targets_B[part]} for part in ([0, 1], [2])
        ]
        found = classifier.evaluate(nn.Identity(), batches)
        assert found["accuracy"] == pytest.approx(2 / 3)
        lost = -sum(map(math.log, (0.5, 0.25, 0.75))) / 3
        assert found["negative_log_likelihood"] == pytest.approx(lost, rel=1e-5)

    def test_golden_errors(self, regressor):
        # a net that says 0 says the mean: off by 1, -2 and 3
        targets_B = torch.tensor([-1.0, 2.0, -3.0]) + regressor.mean
        batches = [
            {"pieces": torch.zeros(len(part), 1), "targets": targets_B[part]}
            for part in ([0, 1], [2])
        ]
        found = regressor.evaluate(nn.Identity(), batches)
        assert found["mean_squared_error"] == pytest.approx(14 / 3, rel=1e-5)
        assert found["mean_absolute_error"] == pytest.approx(2, rel=1e-5)

    def test_squared_errors_are_the_loss_in_the_unit_of_the_numbers(self, regressor):
        model = regressor.model(SMALL).eval()
        batch = next(regressor.data(SMALL, Split.HELD_OUT, seed=0))
        found = regressor.evaluate(model, [batch])["mean_squared_error"]
        assert found == pytest.approx(regressor.loss(model, batch).item() * regressor.spread**2)

    def test_texts_weigh_alike_however_they_are_batched(self, classifier):
        model = classifier.model({**SMALL, "variant": "transformer"}).eval()
        batches = list(classifier.data(SMALL, Split.HELD_OUT, seed=0))
        rows = [
            {name: row[None] for name, row in zip(batch, each, strict=True)}
            for batch in batches
            for each in zip(*batch.values(), strict=True)
        ]
        with torch.no_grad():
            whole, single = (classifier.evaluate(model, each) for each in (batches, rows))
        assert whole == pytest.approx(single, rel=1e-5)


class TestNet:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_does_not_look_at_padding(self, variant):
        model = net(variant=variant).eval()
        short_BT = torch.randint(1, 257, (2, 5))
        long_BT = torch.cat([short_BT, torch.zeros(2, 7, dtype=torch.int64)], dim=1)
        if model.encoder is not None:
            model.encoder.positions_TC.data[5:] = torch.inf  # had anyone looked, it would show
            model.encoder.positions_TC.data[5:] = 1e3
        torch.testing.assert_close(model(long_BT), alone(model, short_BT), rtol=1e-4, atol=1e-5)

    def test_of_an_embedding_is_the_mean_of_its_pieces(self):
        model = net()
        pieces_BT = torch.tensor([[3, 9, 0, 0], [7, 0, 0, 0]])
        weight = model.embedding.weight
        wanted = model.head(torch.stack([(weight[3] + weight[9]) / 2, weight[7]]))
        torch.testing.assert_close(model(pieces_BT), wanted)

    def test_of_an_embedding_does_not_know_their_order(self):
        model = net()
        pieces_BT = torch.randint(1, 257, (2, 12))
        torch.testing.assert_close(model(pieces_BT), model(pieces_BT.flip(1)))

    def test_of_a_transformer_does(self):
        model = net(variant="transformer").eval()
        pieces_BT = torch.randint(1, 257, (2, 12))
        assert not torch.allclose(model(pieces_BT), model(pieces_BT.flip(1)), atol=1e-3)

    def test_has_the_parameters_of_the_users_example(self):
        # Embedding(10000, 512) + Linear(512, 1), with a row more for padding
        model = net(num_outputs=1, vocabulary=10_000, width=512)
        count = sum(tensor.numel() for tensor in model.parameters())
        assert count == 10_001 * 512 + 512 + 1

    def test_padding_is_never_trained(self):
        model = net()
        model(torch.tensor([[3, 0, 0]])).sum().backward()
        gradient = model.embedding.weight.grad
        assert gradient[0].abs().sum() == 0 < gradient[3].abs().sum()

    def test_outputs_are_not_rounded_to_bf16(self):
        for variant in VARIANTS:
            model = net(variant=variant).to(torch.bfloat16)
            assert model(torch.ones(2, 12, dtype=torch.int64)).dtype == torch.float32


def alone(model, pieces_BT):
    """What a net gives for texts without padding, whose positions are cut to their length."""
    if model.encoder is None:
        return model(pieces_BT)
    positions = model.encoder.positions_TC
    model.encoder.positions_TC = nn.Parameter(positions[: pieces_BT.shape[1]])
    try:
        return model(pieces_BT)
    finally:
        model.encoder.positions_TC = positions


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be at least 1, found 0"),
        ({"depth": 0}, "depth must be at least 1, found 0"),
        ({"vocabulary": 255}, "vocabulary must be at least 256, the bytes, found 255"),
        ({"dropout": -0.1}, "dropout must be from 0 to below 1, found -0.1"),
        ({"variant": "transformer", "width": 30}, r"width 30 must be a multiple of heads \(4\)"),
    ],
)
def test_dimensions_that_make_no_net_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        TextParams(**params)


def test_an_embedding_has_no_heads_to_go_with_its_width():
    assert TextParams(width=30).width == 30
