import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from objectives.image_classifier import (
    NUM_DRAWS,
    ConvolutionalNet,
    ImageClassifier,
    ImageClassifierParams,
    moved,
)
from search.metric import Goal
from search.objective import Split, load_objective, memory_neutral
from search.training import TrainingRun

MIDDLE = [0.5, 0.5, 0.5, 0.5]
"""Draws that leave an image where it is."""


@pytest.fixture(scope="module")
def objective() -> ImageClassifier:
    return ImageClassifier(held_out_samples=100)


@pytest.fixture(autouse=True)
def seeded():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def some_images(objective, *, split=Split.TRAIN, **params) -> torch.Tensor:
    batches = objective.data(params, split, seed=0, num_tokens=40)
    return torch.cat([batch["images"] for batch in batches])


class TestObjective:
    def test_is_found_by_its_path(self):
        assert load_objective("objectives.image_classifier:ImageClassifier") is ImageClassifier

    def test_higher_accuracy_and_lower_likelihood_lost_are_better(self):
        goals = {metric.name: metric.goal for metric in ImageClassifier.metrics}
        assert goals == {"accuracy": Goal.MAX, "negative_log_likelihood": Goal.MIN}

    def test_counts_images(self, objective):
        batch = objective.batch({"batch_size": 6, "image_size": 20}, Split.TRAIN)
        assert batch["images"].shape == (6, 1, 20, 20)
        assert (objective.num_tokens(batch), objective.tokens_per_sample({})) == (6, 1)

    def test_names_its_data(self, objective):
        assert objective.provenance["images"] == "digits"
        assert objective.provenance["held_out_samples"] == 100
        assert objective.provenance["train_samples"] == 1697

    def test_no_image_is_trained_on_and_judged_on(self, objective):
        train, held_out = (
            {
                image.numpy().tobytes()
                for image in some_images(objective, split=split, image_size=16)
            }
            for split in Split
        )
        assert not train & held_out

    def test_learns(self, objective):
        params = {"learning_rate": 3e-3, "image_size": 16, "dropout": 0.0, "batch_size": 64}
        run = TrainingRun(objective, params, num_tokens=4_000, device=torch.device("cpu"))
        first = run.step().loss.item()
        while not run.done:
            last = run.step().loss.item()
        assert first == pytest.approx(math.log(10), rel=0.05)
        assert last < first / 2
        assert run.evaluate()["accuracy"] > 0.7


class TestEvaluation:
    def test_golden(self, objective):
        # probabilities of the right class: 0.5, 0.25, 0.25; told right: the first and the last
        logs_BK = torch.tensor([[0.5, 0.5 / 9], [0.25, 0.75], [0.25, 0.75]]).log()
        labels_B = torch.tensor([0, 0, 0])
        batches = [
            {"images": logs_BK[:2], "labels": labels_B[:2]},
            {"images": logs_BK[2:], "labels": labels_B[2:] + 1},
        ]
        found = objective.evaluate(nn.Identity(), batches)
        assert found["accuracy"] == pytest.approx(2 / 3)
        likelihoods = [0.5, 0.25, 0.75]
        lost = -sum(map(math.log, likelihoods)) / 3
        assert found["negative_log_likelihood"] == pytest.approx(lost, rel=1e-6)

    def test_of_one_batch_is_the_loss(self, objective):
        model = objective.model({}).eval()
        batch = next(objective.data({}, Split.HELD_OUT, seed=0))
        found = objective.evaluate(model, [batch])["negative_log_likelihood"]
        assert found == pytest.approx(objective.loss(model, batch).item())

    def test_logarithms_are_not_rounded_to_bf16(self, objective):
        model = objective.model({}).to(torch.bfloat16)
        assert model(objective.batch({}, Split.HELD_OUT)["images"]).dtype == torch.float32


class TestNet:
    def test_has_the_parameters_of_the_example(self):
        # 5 x 5 x 10 + 10; 10 x 5 x 5 x 20 + 20; 320 x 50 + 50; 50 x 10 + 10: the 21,840 that are
        # counted for PyTorch's MNIST example
        net = ConvolutionalNet(ImageClassifierParams(), num_channels=1, num_classes=10)
        assert sum(tensor.numel() for tensor in net.parameters()) == 21_840

    def test_equals_the_example_layer_by_layer(self):
        net = ConvolutionalNet(ImageClassifierParams(), num_channels=1, num_classes=10).eval()
        x = torch.randn(3, 1, 28, 28)
        first, second = (block.convolution for block in net.blocks)
        hidden = nn.functional.max_pool2d(first(x), 2).relu()
        hidden = nn.functional.max_pool2d(second(hidden), 2).relu().view(-1, 320)
        wanted = net.output(net.hidden(hidden).relu()).log_softmax(dim=1)
        torch.testing.assert_close(net(x), wanted)

    @given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 7))
    def test_runs_whenever_its_dimensions_are_taken(self, image_size, depth, kernel_size):
        sizes = {"image_size": image_size, "depth": depth, "kernel_size": kernel_size}
        try:
            params = ImageClassifierParams(**sizes, channels=1, width=2)
        except ValueError:
            size = image_size
            for _ in range(depth):
                size = (size - kernel_size + 1) // 2
            assert size < 1
            return
        net = ConvolutionalNet(params, num_channels=3, num_classes=2)
        assert net(torch.zeros(2, 3, image_size, image_size)).shape == (2, 2)

    def test_probabilities_sum_to_one(self):
        net = ConvolutionalNet(ImageClassifierParams(), num_channels=1, num_classes=7)
        logs_BK = net(torch.randn(4, 1, 28, 28))
        torch.testing.assert_close(logs_BK.exp().sum(dim=1), torch.ones(4))

    def test_dropout_acts_in_training_alone(self):
        net = ConvolutionalNet(ImageClassifierParams(), num_channels=1, num_classes=10)
        x = torch.randn(4, 1, 28, 28)
        assert not torch.equal(net(x), net(x))
        net.eval()
        assert torch.equal(net(x), net(x))


class TestMoved:
    image = torch.rand(1, 1, 9, 9) * 2 - 1

    def moved(self, draws, **params) -> torch.Tensor:
        draws_BD = torch.tensor([draws], dtype=torch.float64)
        return moved(self.image, draws_BD, ImageClassifierParams(**params))

    def test_not_at_all(self):
        found = self.moved(MIDDLE, shift=0.3, rotation=20)
        torch.testing.assert_close(found, self.image, rtol=0, atol=1e-5)

    def test_mirrored(self):
        found = self.moved([0.5, 0.5, 0.5, 0.49], flip=True)
        torch.testing.assert_close(found, self.image.flip(3), rtol=0, atol=1e-5)
        found = self.moved([0.5, 0.5, 0.5, 0.49])
        torch.testing.assert_close(found, self.image, rtol=0, atol=1e-5)

    @pytest.mark.parametrize(("turn", "times"), [(0.0, 1), (1.0, -1)])
    def test_turned_a_quarter(self, turn, times):
        found = self.moved([turn, 0.5, 0.5, 0.5], rotation=90)
        torch.testing.assert_close(
            found, torch.rot90(self.image, -times, (2, 3)), rtol=0, atol=1e-5
        )

    def test_shifted_by_whole_pixels(self):
        # the draw 0 shifts by the whole 1/9 of the side: a pixel; from outside comes black
        found = self.moved([0.5, 0.0, 0.5, 0.5], shift=1 / 9)
        torch.testing.assert_close(found[..., 1:], self.image[..., :-1], rtol=0, atol=1e-5)
        torch.testing.assert_close(found[..., 0], -torch.ones(1, 1, 9), rtol=0, atol=1e-5)
        found = self.moved([0.5, 0.5, 1.0, 0.5], shift=1 / 9)
        torch.testing.assert_close(found[..., :-1, :], self.image[..., 1:, :], rtol=0, atol=1e-5)

    @given(st.lists(st.floats(0, 1), min_size=NUM_DRAWS, max_size=NUM_DRAWS))
    def test_stays_between_black_and_white(self, draws):
        found = self.moved(draws, shift=0.5, rotation=180, flip=True)
        assert -1 - 1e-5 <= found.min() <= found.max() <= 1 + 1e-5


class TestAugmentation:
    moves = {"shift": 0.1, "rotation": 15.0, "flip": True}  # noqa: RUF012 - read only

    def test_is_the_same_for_the_same_seed_however_images_are_batched(self, objective):
        one, other = (
            some_images(objective, batch_size=size, image_size=16, **self.moves) for size in (4, 13)
        )
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)

    def test_moves_other_images_in_the_same_order(self, objective):
        still = some_images(objective, image_size=16)
        found = some_images(objective, image_size=16, shift=0.02, rotation=3.0)
        assert not torch.equal(still, found)
        # moved a little, each is still nearest to what it was
        distances = torch.cdist(found.flatten(1), still.flatten(1))
        assert torch.equal(distances.argmin(dim=1), torch.arange(40))

    def test_leaves_held_out_images_alone(self, objective):
        one, other = (
            some_images(objective, split=Split.HELD_OUT, image_size=16, **moves)
            for moves in ({}, self.moves)
        )
        assert torch.equal(one, other)

    def test_changes_no_tensors_size(self):
        assert memory_neutral(ImageClassifier) == {"shift", "rotation", "flip"}


def test_trains_on_a_file_of_the_user(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(40) % 4)
    mine = ImageClassifier(images=str(tmp_path / "a.npz"))
    assert mine.num_classes == 4
    assert mine.batch({"image_size": 20}, Split.HELD_OUT)["images"].shape == (8, 3, 20, 20)
    assert ImageClassifier(images=str(tmp_path / "a.npz"), color=False).images.num_channels == 1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"image_size": 0}, "image_size must be at least 1, found 0"),
        ({"channels": 0}, "channels must be at least 1, found 0"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1, found 1.0"),
        ({"shift": -0.1}, "shift must be from 0 to below 1, found -0.1"),
        ({"rotation": 360}, "rotation must be from 0 to below 360, found 360"),
        ({"image_size": 15}, "image_size 15 is too small for depth 2 .*16 is the least"),
        ({"depth": 3}, "image_size 28 is too small for depth 3 .*36 is the least"),
    ],
)
def test_dimensions_that_make_no_net_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        ImageClassifierParams(**params)
