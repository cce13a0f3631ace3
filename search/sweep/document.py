"""A YAML text as plain data, with the order of its places and its repeated keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node

from search.errors import Fault, FileFaultsError

_DEEPEST = 3
"""Levels below a section; an alias within its own anchor goes down for ever."""


class _Constructor(SafeConstructor):
    """Reads a date as the text it is: YAML 1.2 has no dates."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", _Constructor.construct_yaml_str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a file says. `lines` has the line of each dotted place, from 1."""

    data: Mapping[str, Any]
    lines: Mapping[str, int]
    repeated: tuple[Fault, ...]

    def in_order(self, faults: list[Fault]) -> list[Fault]:
        """The faults in the order of the file, each once; those of what is missing come first."""
        return sorted(dict.fromkeys(faults), key=lambda fault: self._line(fault.place))

    def _line(self, place: str) -> int:
        while place and place not in self.lines:
            place = place.rpartition(".")[0]
        return self.lines.get(place, 0)


def section_of(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a file's data; empty where it is missing or is no mapping."""
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


def read_document(text: str, path: str) -> Document:
    """The document of a text; a section with nothing in it counts as left out.

    Raises:
        FileFaultsError: on broken YAML, an empty file, or one that is no mapping.
    """
    try:
        root = _yaml().compose(text)
        data = _yaml().load(text)
    except YAMLError as error:
        raise FileFaultsError(path, [_syntax_fault(error)]) from error
    if not isinstance(data, dict):
        raise FileFaultsError(path, [Fault(place="", message=_not_a_mapping(data))])
    lines: dict[str, int] = {}
    repeated = tuple(_read_keys(root, "", lines))
    given = {name: value for name, value in data.items() if value is not None}
    return Document(data=given, lines=lines, repeated=repeated)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.allow_duplicate_keys = True
    return yaml


def _read_keys(node: Node, place: str, lines: dict[str, int]) -> Iterator[Fault]:
    """Adds the line of each dotted place to `lines`; what comes back are keys met again."""
    if not isinstance(node, MappingNode) or place.count(".") >= _DEEPEST:
        return
    for key, value in node.value:
        inner = f"{place}.{key.value}" if place else f"{key.value}"
        line = key.start_mark.line + 1
        if inner in lines:
            yield _twice(inner, lines[inner], line)
            continue
        lines[inner] = line
        yield from _read_keys(value, inner, lines)


def _twice(place: str, first_line: int, line: int) -> Fault:
    where = f"line {line}" if line == first_line else f"lines {first_line} and {line}"
    return Fault(place=place, message=f"is given twice, in {where} (leave one out)")


def _syntax_fault(error: YAMLError) -> Fault:
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}"
        return Fault(place=where, message=f"this is not YAML: {error.problem}")
    return Fault(place="", message=f"this is not YAML: {str(error).splitlines()[0]}")


def _not_a_mapping(data: object) -> str:
    if data is None:
        return "the file is empty ('paretune init' writes one to start from)"
    return "the file must be a mapping of fields to values, such as `name: quickstart`"
