"""A command line with places for values in it: split into words first, filled in after that."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Formatter

from search.errors import Fault
from search.results import Params, ParamValue
from search.sweep.words import unknown

_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_PLACE = "command"


def arguments(command: str, params: Params) -> list[str]:
    """The program and its arguments for one configuration.

    A value never becomes two arguments, whatever is in it. Only the script of a shell, as in
    `sh -c 'train {width} > log'`, is read again: in it each value is quoted for the shell.
    """
    words = shlex.split(command)
    script = _script_index(words)
    return [
        "".join(
            text if name is None else _filled(text, params[name], quoted=index == script)
            for text, name in _pieces(word)
        )
        for index, word in enumerate(words)
    ]


def _filled(before: str, value: ParamValue, *, quoted: bool) -> str:
    text = value_text(value)
    return before + (shlex.quote(text) if quoted else text)


def value_text(value: ParamValue) -> str:
    """A value as the sweep file writes it: `0.001`, `true`, `null`."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _pieces(word: str) -> list[tuple[str, str | None]]:
    """Each text with the name whose value comes after it, None at the end.

    Raises:
        ValueError: on a brace without its other, or what no place may have.
    """
    pieces = []
    for text, name, spec, conversion in Formatter().parse(word):
        if spec or conversion:
            msg = f"{{{name}}} must be a name alone, without ':' or '!'"
            raise ValueError(msg)
        pieces.append((text, name))
    return pieces


def _script_index(words: Sequence[str]) -> int | None:
    """Which word is a shell's script: the one after `-c`, or `-ec` and the like."""
    if not words or Path(words[0]).name not in _SHELLS:
        return None
    options = [
        index
        for index, word in enumerate(words)
        if word.startswith("-") and not word.startswith("--") and word.endswith("c")
    ]
    return options[0] + 1 if options else None


def command_faults(command: str, *, searched: Sequence[str], known: Sequence[str]) -> list[Fault]:
    """What is wrong with a command for a space.

    Args:
        command: as the file has it.
        searched: dimensions of the space, each of which must be in the command.
        known: all names that have a value.
    """
    try:
        words = shlex.split(command)
        names = {name for word in words for _, name in _pieces(word) if name is not None}
    except ValueError as error:
        return [_unreadable(error)]
    if not words:
        return [Fault(place=_PLACE, message="is empty (such as `python train.py`)")]
    faults = [
        Fault(place=_PLACE, message=unknown(f"{{{name}}}", "dimension", known))
        if not name
        else Fault(place=_PLACE, message=unknown(name, "dimension", known))
        for name in sorted(names - set(known))
    ]
    return [*faults, *_program_faults(words[0]), *_unused(searched, names)]


def _unreadable(error: ValueError) -> Fault:
    said = str(error)[0].lower() + str(error)[1:]
    mend = "close it" if "quotation" in said else "write {{ and }} for braces that are no place"
    return Fault(place=_PLACE, message=f"cannot be read: {said} ({mend})")


def _program_faults(program: str) -> Iterator[Fault]:
    if any(name is not None for _, name in _pieces(program)):
        return
    if shutil.which(program) is None:
        message = f"there is no program {program!r} (is it installed? else give its path)"
        yield Fault(place=_PLACE, message=message)


def _unused(searched: Sequence[str], names: set[str]) -> Iterator[Fault]:
    for name in searched:
        if name not in names:
            message = f"is not in the command, so it would change nothing (write {{{name}}} there)"
            yield Fault(place=f"space.{name}", message=message)
