"""Imports of optional packages that have more to say than anybody asked."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TALKATIVE = ("torchao", "torch.utils._pytree")
"""torchao warns of kernels of its own that this torch does not load; none is used here."""


@contextmanager
def quiet_torchao() -> Iterator[None]:
    """While inside, torchao says nothing when it is imported, as transformers does it too."""
    levels = {name: logging.getLogger(name).level for name in _TALKATIVE}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
