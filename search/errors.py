"""Faults a person can mend. Only `search.cli` catches them; anything else is our own bug."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class SearchError(Exception):
    """Something the user can mend; the message says where it is and how."""

    exit_code = 2


class InputError(SearchError):
    """A file, an option or a value that cannot be used as it is."""


class UnpredictableError(InputError):
    """A model whose memory would be predicted wrongly: it is trained only where no gate stands."""


class MachineError(SearchError):
    """The machine, a server or a disk does not offer what is needed."""

    exit_code = 3


class SweepStoppedError(SearchError):
    """A sweep ended early because its trials kept failing the same way."""

    exit_code = 1


class InterruptedRunError(SearchError):
    """Somebody stopped it; the message says how to go on."""

    exit_code = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a file: its place in dotted form, then the rule, what was found, the mend."""

    place: str
    message: str

    def __str__(self) -> str:
        """`place: message`, or the message alone for a fault of the whole file."""
        return f"{self.place}: {self.message}" if self.place else self.message


class FileFaultsError(InputError):
    """All faults of one file, reported together."""

    def __init__(self, path: str, faults: Iterable[Fault]) -> None:
        """Keeps the faults in the order in which they are met in the file."""
        self.path = path
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{path}: {count} fault{'' if count == 1 else 's'}"
        super().__init__("\n".join([head, *(f"  {fault}" for fault in self.faults)]))
