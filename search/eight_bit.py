"""AdamW that keeps its two moments in 8 bits, from torchao; imported where it is asked for.

torchao compiles the update of each parameter (`torchao/optim/adam.py`, `_AdamBase.step`). Here it
runs operator by operator: what compiled code needs cannot be told from a trace
(`search.memory.compiled`), a compiler takes minutes of each trial and hundreds of MB of its memory,
and not every machine has one. So what is predicted is what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from search.quiet import quiet_torchao

if TYPE_CHECKING:
    from torchao.optim import AdamW8bit
    from torchao.optim.subclass_8bit import get_qmap_signed, get_qmap_unsigned
else:
    with quiet_torchao():
        from torchao.optim import AdamW8bit
        from torchao.optim.subclass_8bit import get_qmap_signed, get_qmap_unsigned

with _disable_current_modes():
    # The values of a byte, worked out once in a process: on fake tensors they would be made up.
    get_qmap_signed()
    get_qmap_unsigned()


class EagerAdamW8bit(AdamW8bit):  # type: ignore[misc]
    """torchao's, whose update is not compiled.

    Moments of a parameter with at least 4,096 numbers, a multiple of 256, are kept as a byte for
    each number and a scale for each 256; smaller ones in the width of their parameter.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update, operator by operator."""
        with torch.compiler.set_stance("force_eager"):
            return super().step(closure)
