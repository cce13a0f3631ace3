"""What is done to documents before any is trained on: cleaning, and leaving out repetitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from objectives.duplicates import without_duplicates
from search.errors import InputError

Duplicates = Literal["keep", "exact", "near"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n?")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TRAILING = re.compile(rb"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(rb"\n{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """What to do: by default nothing.

    `clean` gives documents one kind of line end and takes out what carries no text, see `cleaned`.
    `duplicates` says which documents stay: all, none that agrees with an earlier one to the byte
    (`exact`), or none that shares `similarity` of its runs of five words with an earlier one
    (`near`).
    """

    clean: bool = False
    duplicates: Duplicates = "keep"
    similarity: float = 0.7

    def __post_init__(self) -> None:
        """Raises InputError on a similarity that is no share."""
        if not 0 < self.similarity <= 1:
            msg = f"similarity must be above 0 and at most 1, found {self.similarity} (try 0.7)"
            raise InputError(msg)

    @property
    def does_nothing(self) -> bool:
        """Whether documents stay as they are."""
        return not self.clean and self.duplicates == "keep"

    def applied(
        self, documents: Mapping[str, bytes]
    ) -> tuple[Mapping[str, bytes], Mapping[str, str | int]]:
        """The documents that are left, by name, and what was saved, for the record."""
        record: dict[str, str | int] = {}
        if self.clean:
            before_bytes = _num_bytes(documents)
            documents = {name: cleaned(text) for name, text in documents.items()}
            record["bytes_saved_by_cleaning"] = before_bytes - _num_bytes(documents)
        if self.duplicates != "keep":
            near = self.similarity if self.duplicates == "near" else None
            found = without_duplicates(documents, near=near)
            record["num_repeated_files"] = len(found.repeated)
            record["num_nearly_repeated_files"] = len(found.nearly_repeated)
            record["bytes_saved_by_deduplication"] = _num_bytes(documents) - _num_bytes(found.kept)
            documents = found.kept
        return documents, record


def _num_bytes(documents: Mapping[str, bytes]) -> int:
    return sum(map(len, documents.values()))


def cleaned(text: bytes) -> bytes:
    """A text with line ends of one kind, and without what says nothing.

    Taken out: a byte order mark, control characters but tabs and line ends, blanks at line ends,
    blank lines beyond two in a row and at the end.
    """
    text = _LINE_END.sub(b"\n", text.removeprefix(_BYTE_ORDER_MARK))
    text = _TRAILING.sub(b"", _CONTROL.sub(b"", text))
    text = _BLANK_LINES.sub(b"\n\n\n", text).rstrip(b"\n")
    return text + b"\n" if text else b""
