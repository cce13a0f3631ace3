"""The CUDA personality: a run traced on this CPU books what it would on a GPU that is not here.

Tensors of the GPU lie on `cpu:0`, those of the host on `cpu`: torch keeps the two apart as it does
a GPU and its host, on any build and without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from search.memory.cuda_autocast import installed_autocast
from search.memory.cuda_autocast_names import installed_names
from search.memory.cuda_device import STAND_IN, Architecture, is_on_gpu
from search.memory.cuda_operators import installed_operators
from search.memory.cuda_optimizers import installed_optimizers
from search.memory.cuda_results import REPLACEMENTS
from search.memory.cuda_scratch import has_scratch, scratch
from search.memory.cuda_streams import installed_streams
from search.memory.cuda_uncertainty import total
from search.memory.cuda_workspaces import Workspaces, is_product
from search.memory.device import WorkspaceBytes
from search.memory.target import Call, Freed, Inside, Returned, Unsure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """A GPU to trace for, by its compute capability, such as (8, 0) for an A100.

    `workspaces` are those that were measured on it; default: what torch's source says of them.
    """

    architecture: Architecture
    workspaces: WorkspaceBytes | None = None
    _workspaces: Workspaces = field(init=False, repr=False, compare=False)
    _uncertain: list[Unsure] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        """Starts without workspaces."""
        object.__setattr__(self, "_workspaces", Workspaces(self.architecture, self.workspaces))

    @property
    def device(self) -> torch.device:
        """The stand-in of the GPU."""
        return STAND_IN

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on the stand-in."""
        return is_on_gpu(tensor)

    @property
    def uncertain_bytes(self) -> Unsure:
        """How far the peak of the last trace may lie below or above: cuDNN names no sizes."""
        return total(self._uncertain)

    @property
    def uncertain(self) -> tuple[Unsure, ...]:
        """The same of each call by itself."""
        return tuple(self._uncertain)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While inside, torch chooses operators, types and optimizers as it does on CUDA."""
        self._workspaces.clear()
        self._uncertain.clear()
        with (
            installed_operators(self.architecture),
            installed_autocast(),
            installed_names(),
            installed_optimizers(),
            installed_streams(),
        ):
            yield

    def replacement(self, operator: Any) -> Callable[..., Any] | None:
        """What CUDA runs instead, where autograd does not see it."""
        return REPLACEMENTS.get(operator)

    def inside(self, call: Call) -> Iterable[Inside | Freed | Returned]:
        """Workspaces and scratch: see `search.memory.cuda_workspaces` and `cuda_scratch`."""
        if not (is_product(call.operator) or has_scratch(call.operator)):
            return
        if not any(isinstance(x, Tensor) and is_on_gpu(x) for x in tree_leaves(call.result)):
            return
        yield from self._workspaces.inside(call)
        for step in scratch(call, self.architecture):
            if isinstance(step, Unsure):
                self._uncertain.append(step)
            else:
                yield step
