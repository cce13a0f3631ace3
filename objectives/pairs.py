"""Pairs of texts: those of a tab-separated file, or language names that need no download."""

from __future__ import annotations

import gettext
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from objectives.texts import Texts
from search.errors import InputError

LANGUAGE_NAMES = "language-names"

_CATALOGUES = ("iso639-3", "iso639-5")
"""Languages, and families of languages."""
_HELD_OUT_ONE_IN = 10

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Texts in UTF-8: each source has the target of the same number."""

    sources: Texts
    targets: Texts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairCorpus:
    """Pairs to train on and pairs to be judged on. `provenance` finds the same data again."""

    train: Pairs
    held_out: Pairs
    provenance: Mapping[str, str | int]


def open_pairs(pairs: str, *, held_out_pairs: int, longest_bytes: int) -> PairCorpus:
    """The pairs of that name or file, split the same way whenever they are opened.

    Of pairs with the same source the first is kept. A tenth is held out, chosen by the hash of the
    words of the source in any order: "Sami, Inari" and "Inari Sami" are on one side.

    Args:
        pairs: `language-names`, English to French from the catalogues in `pycountry`, without
            those that stay as they are; or the path of a file with a source, a tab and a target
            on each line.
        held_out_pairs: pairs to be judged on, fewer where fewer are held out.
        longest_bytes: pairs with more on a side are left out.

    Raises:
        InputError: when there is nothing there to train and to be judged on.
    """
    named = pairs == LANGUAGE_NAMES
    read = list(_language_names() if named else _lines(Path(pairs).expanduser()))
    first = dict(reversed(read))
    unique = [(source, first[source]) for source in dict.fromkeys(source for source, _ in read)]
    kept = [pair for pair in unique if max(map(_num_bytes, pair)) <= longest_bytes]
    held_out = _held_out(kept)
    train = [pair for pair in kept if pair not in held_out]
    if not train or not held_out:
        msg = (
            f"{pairs}: too few pairs, found {len(kept)} (2 different ones are the least: add some)"
        )
        raise InputError(msg)
    judged = [pair for pair in kept if pair in held_out][:held_out_pairs]
    return PairCorpus(
        train=_texts(train),
        held_out=_texts(judged),
        provenance={
            "corpus": pairs,
            **({"pycountry": version("pycountry")} if named else {}),
            "sha256": hashlib.sha256("\n".join(map("\t".join, kept)).encode()).hexdigest(),
            "num_repeated": len(read) - len(unique),
            "num_too_long": len(unique) - len(kept),
            "train_pairs": len(train),
            "held_out_pairs": len(judged),
        },
    )


def _language_names() -> Iterator[Pair]:
    import pycountry

    for name in _CATALOGUES:
        file = Path(pycountry.LOCALES_DIR, "fr", "LC_MESSAGES", f"{name}.mo")
        with file.open("rb") as stream:
            translations = gettext.GNUTranslations(stream)
        names = sorted(key for key in translations._catalog if isinstance(key, str) and key)  # type: ignore[attr-defined]  # noqa: SLF001 - gettext lists its texts nowhere else
        pairs = ((name, translations.gettext(name)) for name in names)
        yield from (pair for pair in pairs if pair[0] != pair[1])


def _lines(path: Path) -> Iterator[Pair]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror} (name a file, or {LANGUAGE_NAMES})"
        raise InputError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path}: is not UTF-8 text: {error.reason} at byte {error.start} (convert it)"
        raise InputError(msg) from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield _pair(line, f"{path}: line {number}")


def _pair(line: str, place: str) -> Pair:
    cells = [cell.strip() for cell in line.split("\t")]
    if len(cells) != 2 or not all(cells):
        msg = (
            f"{place}: must be a source, a tab and a target, found {len(cells)} "
            f"cell{'s' * (len(cells) != 1)}, {sum(map(bool, cells))} of them with text (mend it)"
        )
        raise InputError(msg)
    return cells[0], cells[1]


def _held_out(pairs: list[Pair]) -> set[Pair]:
    """A tenth of the pairs, those of the same words together."""
    groups: dict[bytes, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(_words_hash(pair[0]), []).append(pair)
    chosen: set[Pair] = set()
    for key in sorted(groups)[: len(groups) - 1]:
        if len(chosen) >= max(1, len(pairs) // _HELD_OUT_ONE_IN):
            break
        chosen.update(groups[key])
    return chosen


def _words_hash(source: str) -> bytes:
    letters = "".join(char if char.isalnum() else " " for char in source.casefold())
    return hashlib.sha256(" ".join(sorted(letters.split())).encode()).digest()


def _num_bytes(text: str) -> int:
    return len(text.encode())


def _texts(pairs: list[Pair]) -> Pairs:
    sources, targets = (
        Texts.of(text.encode() for text in side) for side in zip(*pairs, strict=True)
    )
    return Pairs(sources=sources, targets=targets)
