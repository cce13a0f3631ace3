"""A trained model made smaller, by the dimensions of a configuration, in their order."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from search.compression.channels import prune_channels
from search.compression.params import CompressionParams
from search.compression.quantization import quantize
from search.compression.weights import prune_weights, pruned_share
from search.results import ParamValue


def compress(
    model: nn.Module, params: CompressionParams, run: Callable[[], Tensor]
) -> dict[str, ParamValue]:
    """Compresses a model in place: fewer units, then weights at 0, then int8; what was done.

    Args:
        model: a trained one.
        params: what is to be done.
        run: the model's loss on a batch, always the same one.

    Raises:
        InputError: naming the dimension that the model does not allow.
    """
    done: dict[str, ParamValue] = {}
    if params.pruned_channels:
        sizes = prune_channels(model, params.pruned_channels, run)
        done["num_layers_cut"] = len(sizes)
        done["num_units_taken_out"] = sum(before - after for before, after in sizes.values())
    if params.pruned_weights:
        prune_weights(model, params.pruned_weights)
        done["share_of_zeros"] = pruned_share(model)
    if layers := quantize(model, params.quantization):
        done["num_layers_quantized"] = len(layers)
    return done
