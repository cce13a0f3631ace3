"""Sizes of blocks that follow no polynomial: how a kernel shares its work steps at thresholds.

A kernel states such a size as a rule applied to whole numbers. The numbers do follow polynomials
in micro-batch and length, so that an event program gives them at any point, and the rule the size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Rule = Callable[..., int]
_RULES: dict[str, Rule] = {}


class Formula(NamedTuple):
    """A rule, by its name, and the numbers it is applied to."""

    rule: str
    numbers: tuple[int, ...]

    def num_bytes(self) -> int:
        """The size, 0 where there is no such block.

        Raises:
            KeyError: when this version has no such rule.
        """
        return _RULES[self.rule](*self.numbers)


def is_known(name: str) -> bool:
    """Whether this version has a rule of that name."""
    return name in _RULES


def rule(function: Rule) -> Rule:
    """Makes a function of whole numbers known by its name, also in later processes."""
    if _RULES.setdefault(function.__name__, function) is not function:
        msg = f"there are two rules named {function.__name__}"
        raise ValueError(msg)
    return function
