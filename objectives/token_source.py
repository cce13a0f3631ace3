"""Where a model gets its tokens: the tokenizer of its folder, or pieces learned from the texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objectives.vocabulary import NUM_BYTES
from search.errors import InputError

if TYPE_CHECKING:
    from objectives.pretrained_source import Source

PADDING, BEGIN = 0, 1
NUM_MARKS = 2
"""Numbers of a learned vocabulary that stand for no text; its pieces follow."""
_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """The content of a model's `tokenizer.json`; None where its tokens are learned.

    `padding` is the number of the token that texts of a batch are filled up with.
    """

    tokenizer: str | None
    padding: int

    @classmethod
    def of(cls, source: Source) -> TokenSource:
        """That of a model's folder.

        Raises:
            InputError: when the folder has no tokenizer of the library `tokenizers`.
        """
        if source.folder is None:
            return cls(tokenizer=None, padding=PADDING)
        file = source.folder / _TOKENIZER
        if not file.is_file():
            msg = (
                f"{source.folder}: has no {_TOKENIZER} (write one there: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER))"
            )
            raise InputError(msg)
        text = file.read_text(encoding="utf-8")
        _require_fitting(source, text)
        return cls(tokenizer=text, padding=_padding_of(source))

    def require(self, vocabulary: int | None) -> int:
        """The pieces to be learned; 0 where tokens are given.

        Raises:
            InputError: when a number is asked of a tokenizer that is what it is.
        """
        if self.tokenizer is None:
            return vocabulary or NUM_BYTES
        if vocabulary is not None:
            msg = f"vocabulary {vocabulary}: the folder has its own tokenizer (leave it out)"
            raise InputError(msg)
        return 0

    def config_changes(self, vocabulary: int | None) -> dict[str, Any]:
        """What of a model's config follows from its tokens."""
        pieces = self.require(vocabulary)
        changes = {"pad_token_id": self.padding}
        return {**changes, "vocab_size": pieces + NUM_MARKS} if pieces else changes


def _require_fitting(source: Source, tokenizer: str) -> None:
    from tokenizers import Tokenizer

    most = max(Tokenizer.from_str(tokenizer).get_vocab().values())
    size = source.values.get("vocab_size")
    if isinstance(size, int) and most >= size:
        msg = (
            f"{source.folder}: its tokenizer has tokens up to {most}, its model only {size} "
            "(name a folder in which the two belong together)"
        )
        raise InputError(msg)


def _padding_of(source: Source) -> int:
    """The token for padding; of a model without one its end of a text, as is usual."""
    names = ("pad_token_id", "eos_token_id")
    found = (source.values.get(name) for name in names)
    return next((token for token in found if isinstance(token, int)), 0)
