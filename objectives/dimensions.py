"""Dimensions of objectives: how they are checked, and taken out of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from search.results import Params

_Group = TypeVar("_Group")


def chosen(group: type[_Group], params: Params) -> _Group:
    """The values of one dataclass of dimensions among a configuration's; the rest has defaults."""
    names = group.__dataclass_fields__  # type: ignore[attr-defined]
    return group(**{name: params[name] for name in names if name in params})


def require_at_least(least: int, group: Any, *names: str, why: str = "") -> None:
    """Raises ValueError at the first of the named dimensions that is smaller."""
    for name in names:
        if getattr(group, name) < least:
            reason = f"{why}, " if why else ""
            msg = f"{name} must be at least {least}, {reason}found {getattr(group, name)}"
            raise ValueError(msg)


def require_below(below: int, group: Any, *names: str) -> None:
    """Raises ValueError at the first of the named dimensions that is negative or not below."""
    for name in names:
        if not 0 <= getattr(group, name) < below:
            msg = f"{name} must be from 0 to below {below}, found {getattr(group, name)}"
            raise ValueError(msg)
