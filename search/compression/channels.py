"""Magnitude pruning of hidden units and channels: the least are taken out of their layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from search.compression.flow import Flow, Hidden, flow_of
from search.errors import InputError


def prune_channels(
    model: nn.Module, share: float, run: Callable[[], Tensor]
) -> dict[str, tuple[int, int]]:
    """Takes a share of the units out of each layer that allows it; their numbers before and after.

    The model then computes what it would with the weights and biases of those units at 0, and is
    held to that. Which layers allow it is seen while it runs, see `search.compression.flow`; in
    each the units whose weights have the least sum of magnitudes go, and one stays at least.

    Args:
        model: changed in place: its layers have smaller weights afterwards.
        share: from 0 to below 1.
        run: the model's loss on a batch, always the same one.

    Raises:
        InputError: when no layer allows it, with the reason for each, or when units are read in a
            way that was not seen.

    Source: Li et al. 2017, arXiv 1608.08710, section 3.1, without training again.
    """
    flow = flow_of(model, run)
    require_hidden(flow)
    kept = {each.name: kept_units(_weight(model, each.name), share) for each in flow.hidden}
    sizes = {name: (len(_weight(model, name)), len(units)) for name, units in kept.items()}
    with torch.no_grad():
        for name, units in kept.items():
            _zero_others(model.get_submodule(name), units)
        zeroed = run()
        for each in flow.hidden:
            _cut(model, each, kept[each.name])
        _require_same(run(), zeroed)
    return sizes


def _weight(model: nn.Module, name: str) -> Tensor:
    return model.get_parameter(f"{name}.weight")


def _zero_others(layer: nn.Module, kept: Tensor) -> None:
    for parameter in layer.parameters(recurse=False):
        parameter[_others(len(parameter), kept)] = 0


def _others(num_units: int, kept: Tensor) -> Tensor:
    is_other = torch.ones(num_units, dtype=torch.bool, device=kept.device)
    is_other[kept] = False
    return is_other


_TOLERANCE = 0.02
"""How far two losses may differ that add the same numbers in another order, in bf16 too."""


def _require_same(cut: Tensor, zeroed: Tensor) -> None:
    if not torch.allclose(cut.float(), zeroed.float(), rtol=_TOLERANCE, equal_nan=True):
        msg = (
            "pruned_channels: without its least units the model computes something else than with "
            f"them at 0 (a loss of {cut:g} instead of {zeroed:g}): it reads them in a way that "
            "torch's functions do not show (set it to 0)"
        )
        raise InputError(msg)


def require_hidden(flow: Flow) -> None:
    """Raises InputError when there is no layer whose units can be taken out."""
    if flow.hidden:
        return
    reasons = "; ".join(f"{name}: {reason}" for name, reason in flow.refused.items())
    msg = (
        "pruned_channels: the model has no layer whose units can be taken out "
        f"({reasons or 'it has no linear or convolutional layer'}): set it to 0"
    )
    raise InputError(msg)


def _cut(model: nn.Module, hidden: Hidden, kept: Tensor) -> None:
    layer = model.get_submodule(hidden.name)
    for parameter, _ in list(layer.named_parameters(recurse=False)):
        _keep(layer, parameter, kept, dim=0)
    set_sizes(layer)
    for reader in hidden.readers:
        along = torch.arange(reader.inputs_per_unit, device=kept.device)
        inputs = (kept[:, None] * reader.inputs_per_unit + along).flatten()
        _keep(model.get_submodule(reader.name), "weight", inputs, dim=1)
        set_sizes(model.get_submodule(reader.name))


def kept_units(weight: Tensor, share: float) -> Tensor:
    """The units of a layer's weight that stay, by rising number, at least one of them."""
    sizes = weight.detach().abs().flatten(1).sum(dim=1, dtype=torch.float32)
    num_kept = max(1, len(sizes) - round(share * len(sizes)))
    return sizes.topk(num_kept).indices.sort().values


def _keep(layer: nn.Module, name: str, kept: Tensor, *, dim: int) -> None:
    before: nn.Parameter = getattr(layer, name)
    after = before.detach().index_select(dim, kept)
    setattr(layer, name, nn.Parameter(after, requires_grad=before.requires_grad))


def set_sizes(layer: nn.Module) -> None:
    """Makes what a layer says of its sizes true of its weight."""
    outputs, inputs = layer.get_parameter("weight").shape[:2]
    kind = "features" if isinstance(layer, nn.Linear) else "channels"
    vars(layer).update({f"out_{kind}": outputs, f"in_{kind}": inputs})
