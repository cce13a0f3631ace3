"""The small convolutional net that PyTorch's MNIST example began with, over images of any folder.

Tensors carry their shape: B samples, C channels, H and W pixels, F features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from objectives.classification import CLASS_METRICS, class_metrics
from objectives.dimensions import chosen, require_at_least, require_below
from objectives.images import Images, open_images
from objectives.samples import Indices, in_order, samples_of_batch, split_by_name, training_order
from search.loading import MadeBatches
from search.metric import Metric
from search.objective import MEMORY_NEUTRAL, Split

if TYPE_CHECKING:
    from search.objective import Batch
    from search.results import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClassifierParams:
    """The dimensions of the net, and how far training images are moved at random.

    `channels` is the number of kernels of the first convolution; each further one has twice as
    many. `width` is that of the hidden linear layer. `shift` is the largest, as a share of the
    image's side, `rotation` the largest in degrees, either way; `flip` mirrors half of the images.
    """

    image_size: int = 28
    channels: int = 10
    kernel_size: int = 5
    depth: int = 2
    width: int = 50
    dropout: float = 0.5
    shift: float = field(default=0.0, metadata=MEMORY_NEUTRAL)
    rotation: float = field(default=0.0, metadata=MEMORY_NEUTRAL)
    flip: bool = field(default=False, metadata=MEMORY_NEUTRAL)

    def __post_init__(self) -> None:
        """Raises ValueError on dimensions that make no net."""
        require_at_least(1, self, "image_size", "channels", "kernel_size", "depth", "width")
        require_below(1, self, "dropout", "shift")
        require_below(360, self, "rotation")
        if self.image_size < self._least_size:
            msg = (
                f"image_size {self.image_size} is too small for depth {self.depth} and kernel_size "
                f"{self.kernel_size}: nothing would be left of it, {self._least_size} is the least"
            )
            raise ValueError(msg)

    @property
    def _least_size(self) -> int:
        size = 1
        for _ in range(self.depth):
            size = 2 * size + self.kernel_size - 1
        return size

    @property
    def block_channels(self) -> tuple[int, ...]:
        """Channels of the map that each convolution leaves."""
        return tuple(self.channels * 2**index for index in range(self.depth))

    @property
    def last_size(self) -> int:
        """Pixels on a side of the last map."""
        size = self.image_size
        for _ in range(self.depth):
            size = (size - self.kernel_size + 1) // 2
        return size

    @property
    def moves(self) -> bool:
        """Whether training images are moved at all."""
        return bool(self.shift or self.rotation or self.flip)


class ImageClassifier:
    """Learns to tell the classes of images apart."""

    metrics: tuple[Metric, ...] = CLASS_METRICS
    parameters: type = ImageClassifierParams
    provenance: Mapping[str, str | int]

    def __init__(
        self, images: str = "digits", held_out_samples: int = 1_000, *, color: bool = True
    ) -> None:
        """Opens the images.

        Args:
            images: `digits`, or the path of a folder with a sub-folder for each class, or of an
                `.npz` with `images` and `labels`.
            held_out_samples: images that every trial is judged on, a fifth of all at most.
            color: whether to keep colours, where there are any.
        """
        self.images: Images = open_images(images, color=color)
        self.num_classes = len(self.images.classes)
        self._train, self._held_out = split_by_name(images, self.images.names, held_out_samples)
        self.provenance = {
            **self.images.provenance,
            "train_samples": len(self._train),
            "held_out_samples": len(self._held_out),
        }

    def model(self, params: Params) -> nn.Module:
        """A `ConvolutionalNet` of the given dimensions."""
        return ConvolutionalNet(
            _net_params(params),
            num_channels=self.images.num_channels,
            num_classes=self.num_classes,
        )

    def batch(self, params: Params, split: Split) -> Batch:
        """Zeros: `images`, fp32, (B, C, H, W), and `labels`, int64, (B,)."""
        num_samples, size = samples_of_batch(params, split), _net_params(params).image_size
        if split is Split.HELD_OUT:
            num_samples = min(num_samples, len(self._held_out))
        return {
            "images": torch.zeros(num_samples, self.images.num_channels, size, size),
            "labels": torch.zeros(num_samples, dtype=torch.int64),
        }

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Images at the size of the trial; those to train on are moved at random."""
        net, num_samples = _net_params(params), samples_of_batch(params, split)
        if split is Split.HELD_OUT:
            order = in_order(self._held_out, num_samples=num_samples)
            return MadeBatches(partial(self._batch, size=net.image_size), order)
        order = training_order(
            self._train, num_samples=num_samples, num_tokens=num_tokens, seed=seed
        )
        generator = np.random.default_rng([seed, 1])
        drawn = ((chosen, generator.random((len(chosen), NUM_DRAWS))) for chosen in order)
        return MadeBatches(partial(self._moved_batch, net=net), drawn)

    def _moved_batch(
        self, drawn: tuple[Indices, npt.NDArray[np.float64]], *, net: ImageClassifierParams
    ) -> dict[str, Tensor]:
        """Images to train on, each moved by its draws."""
        chosen, draws = drawn
        batch, draws_BD = self._batch(chosen, net.image_size), torch.from_numpy(draws)
        if net.moves:
            for part in _parts(len(chosen)):
                batch["images"][part] = moved(batch["images"][part], draws_BD[part], net)
        return batch

    def _batch(self, chosen: Indices, size: int) -> dict[str, Tensor]:
        pixels_BCHW = self.images.read(chosen, size)
        return {
            "images": pixels_BCHW.float().div_(127.5).sub_(1).contiguous(),  # black -1, white 1
            "labels": torch.from_numpy(self.images.labels[chosen]),
        }

    def num_tokens(self, batch: Batch) -> int:
        """Images in a batch: there are no tokens."""
        return len(batch["labels"])

    def tokens_per_sample(self, params: Params) -> int:  # noqa: ARG002 - as the contract has it
        """One."""
        return 1

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean negative log-likelihood in nats an image."""
        return functional.nll_loss(*self.scores(model, batch))

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logarithm of each class's probability for each image, and its class."""
        return model(batch["images"]), batch["labels"]

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Over all held-out images the share told right, and the mean negative log-likelihood."""
        scored = (self.scores(model, batch) for batch in batches)
        return class_metrics(scored, loss=functional.nll_loss)


_MOVED_AT_ONCE = 16
"""Images: to move one takes five times its memory."""


def _parts(num_samples: int) -> Iterator[slice]:
    for first in range(0, num_samples, _MOVED_AT_ONCE):
        yield slice(first, first + _MOVED_AT_ONCE)


def _net_params(params: Params) -> ImageClassifierParams:
    return chosen(ImageClassifierParams, params)


class ConvolutionalNet(nn.Module):
    """Convolutions, a hidden linear layer, and the logarithm of each class's probability.

    With its defaults: 10 and 20 kernels of 5 by 5, 50 hidden features, dropout of one half.

    Source: pytorch/examples, `mnist/main.py`, up to 2019.
    """

    def __init__(
        self, params: ImageClassifierParams, *, num_channels: int, num_classes: int
    ) -> None:
        """Weights are drawn as torch does by default."""
        super().__init__()
        before = (num_channels, *params.block_channels)
        self.blocks = nn.ModuleList(
            ConvolutionalBlock(
                num_inputs,
                num_outputs,
                kernel_size=params.kernel_size,
                dropout=params.dropout if index else 0.0,
            )
            for index, (num_inputs, num_outputs) in enumerate(
                zip(before, params.block_channels, strict=False)
            )
        )
        self.hidden = nn.Linear(before[-1] * params.last_size**2, params.width)
        self.dropout = nn.Dropout(params.dropout)
        self.output = nn.Linear(params.width, num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logarithms of probabilities, fp32, (B, K)."""
        x_BCHW = x_BCHW.to(self.hidden.weight.dtype)
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        x_BF = self.dropout(functional.relu(self.hidden(x_BCHW.flatten(1))))
        return functional.log_softmax(self.output(x_BF).float(), dim=1)


class ConvolutionalBlock(nn.Module):
    """A convolution without padding, dropout of whole channels, the largest of every 2 by 2."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, kernel_size: int, dropout: float
    ) -> None:
        """One convolution."""
        super().__init__()
        self.convolution = nn.Conv2d(num_inputs, num_outputs, kernel_size)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """The map, halved on each side, its negative values 0."""
        return functional.relu(functional.max_pool2d(self.dropout(self.convolution(x_BCHW)), 2))


NUM_DRAWS = 4
"""Random numbers that each training image takes, however it is moved."""


def moved(images_BCHW: Tensor, draws_BD: Tensor, params: ImageClassifierParams) -> Tensor:
    """Images mirrored, turned and shifted, in one interpolation; black comes in from outside.

    Args:
        images_BCHW: black is -1.
        draws_BD: from 0 to 1, (B, 4): the turn, the shift right and down, whether to mirror.
        params: how far they may be moved.

    Source: Jaderberg et al. 2015, arXiv 1506.02025, equations 1 and 5.
    """
    turn_B, right_B, down_B, mirror_B = draws_BD.float().unbind(dim=1)
    angle_B = (2 * turn_B - 1) * np.deg2rad(params.rotation)
    sign_B = torch.where((mirror_B < 0.5) & params.flip, -1.0, 1.0)
    cosine_B, sine_B = angle_B.cos(), angle_B.sin()
    # where each pixel of the result comes from, the sides of the image being 2 long
    across_B, upright_B = ((2 * draw_B - 1) * (2 * params.shift) for draw_B in (right_B, down_B))
    from_x_B3 = torch.stack([sign_B * cosine_B, -sign_B * sine_B, across_B], dim=1)
    from_y_B3 = torch.stack([sine_B, cosine_B, upright_B], dim=1)
    grid_BHW2 = functional.affine_grid(
        torch.stack([from_x_B3, from_y_B3], dim=1), list(images_BCHW.shape), align_corners=False
    )
    sampled_BCHW = functional.grid_sample(images_BCHW + 1, grid_BHW2, align_corners=False)
    return sampled_BCHW.sub_(1)
