"""Puts kernels of our own beneath torch's operators, and takes them out again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.library import Library


@contextmanager
def installed_kernels(
    key: str, kernels: Iterable[tuple[str, Callable[..., Any]]]
) -> Iterator[None]:
    """While inside, operators of `aten` run these kernels at a dispatch key.

    Args:
        key: such as AutogradCPU, where autograd would look at an operator.
        kernels: an operator's name with its overload, such as `softmax.int`, and what runs.
    """
    library: Any = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel stood there before is intended
            for name, kernel in kernels:
                library.impl(name, kernel, key, allow_override=True)
        yield
    finally:
        library._destroy()  # noqa: SLF001 - as torch's own tests end a library
