"""An optimizer whose state and updates are the host's, from torchao; imported where asked for.

torchao keeps a copy of each larger parameter in pinned memory of the host, copies its gradient
there as soon as the backward pass has it, updates the copy there and copies it back
(`torchao/optim/cpu_offload.py`). Parameters with fewer than 4,096 numbers stay on the device.

Left out: that gradients leave the device too (`offload_gradients`). When they are gone depends on
the bus beside the backward pass, so nobody can say how many are there at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from search.quiet import quiet_torchao

if TYPE_CHECKING:
    import torch
    from torchao.optim import CPUOffloadOptimizer
else:
    with quiet_torchao():
        from torchao.optim import CPUOffloadOptimizer


class OffloadedOptimizer(CPUOffloadOptimizer):  # type: ignore[misc]
    """torchao's, which can be let go, and which goes on from a checkpoint."""

    def __init__(
        self, params: Iterable[Tensor], kind: type[torch.optim.Optimizer], **chosen: Any
    ) -> None:
        """Copies the parameters to the host, which need not be initialized otherwise.

        Args:
            params: those that are trained.
            kind: the update rule, run for each parameter by itself.
            chosen: its settings.
        """
        super().__init__(params, kind, **chosen)
        self._hooks = [
            _owned_elsewhere(param) for param in self.param_d2h_map if param.requires_grad
        ]

    @property
    def parts(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizer on the device, if there is one, and those on the host."""
        on_device = () if self.d_opt is None else (self.d_opt,)
        return (*on_device, *self.optim_dict.values())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, with the weights that the model on the device has by now."""
        super().load_state_dict(state)
        for on_device, on_host in self.param_d2h_map.items():
            on_host.copy_(on_device.detach())


def _owned_elsewhere(param: Tensor) -> list[Callable[[Tensor], None]]:
    """The hooks of a parameter, which from now on calls them while others keep them.

    They own the optimizer, which owns the parameter, and Python's collector does not look into the
    hooks of a tensor: the model would never go.
    """
    hooks: dict[int, Callable[[Tensor], None]] = param._post_accumulate_grad_hooks  # noqa: SLF001 - torchao keeps no handle
    kept = list(hooks.values())
    for number, hook in hooks.items():
        hooks[number] = partial(_call, weakref.ref(hook))
    return kept


def _call(hook: weakref.ref[Callable[[Tensor], None]], param: Tensor) -> None:
    found = hook()
    if found is not None:
        found(param)
