"""Magnitude pruning of single weights: those nearest to 0 become 0, in each layer alone."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from search.errors import InputError

_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.MultiheadAttention,
)


def prune_weights(model: nn.Module, share: float) -> None:
    """Sets the share of each layer's weights with the least magnitude to 0, in place.

    A layer is pruned by itself, so that none is emptied because its weights are small. Left alone:
    biases, norms, embeddings, and a weight that an embedding shares. Beside the model it needs
    room for a few copies of one layer.

    Raises:
        InputError: when the model has no layer with such weights.

    Source: Han et al. 2015, arXiv 1506.02626, section 3, without training again.
    """
    require_weights(model)
    for weight in _weights(model):
        _prune(weight, round(share * weight.numel()))


def require_weights(model: nn.Module) -> None:
    """Raises InputError when a model has no weights to prune."""
    if not any(True for _ in _weights(model)):
        msg = "pruned_weights: the model has no linear or convolutional layer (set it to 0)"
        raise InputError(msg)


def _weights(model: nn.Module) -> Iterator[Tensor]:
    seen = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    for module in model.modules():
        if not isinstance(module, _LAYERS):
            continue
        for name, weight in module.named_parameters(recurse=False):
            if name.endswith("weight") and id(weight) not in seen:
                seen.add(id(weight))
                yield weight.detach()


def _prune(weight: Tensor, num_pruned: int) -> None:
    """Exactly that many, of those that are equal the first."""
    if not num_pruned:
        return
    magnitudes = weight.abs().flatten().float()
    threshold = magnitudes.kthvalue(num_pruned).values
    pruned = magnitudes < threshold
    num_equal = num_pruned - int(pruned.sum())
    pruned[(magnitudes == threshold).nonzero()[:num_equal, 0]] = True
    weight.masked_fill_(pruned.view_as(weight), 0)


def pruned_share(model: nn.Module) -> float:
    """The share of zeros among the weights that `prune_weights` looks at; 0 without any."""
    weights = list(_weights(model))
    num_zeros = sum(int((weight == 0).sum()) for weight in weights)
    return num_zeros / max(1, sum(weight.numel() for weight in weights))
