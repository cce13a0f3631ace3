"""What a fault says: values as the file wrote them, the nearest known name, plain words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from search.errors import Fault

FORMS = frozenset({"choices", "float", "int"})
"""How a dimension may be written; pydantic names the form in the place of a fault."""

_LONGEST = 60

_RULES = MappingProxyType(
    {
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "string_type": "must be text",
        "bool_type": "must be true or false",
        "tuple_type": "must be a list",
        "dict_type": "must be a mapping of names to values",
        "model_type": "must be a mapping of names to values",
        "invalid_key": "names must be text",
        "greater_than": "must be above {gt}",
        "greater_than_equal": "must be at least {ge}",
    }
)


def found(value: object) -> str:
    """A value as a reader of the file knows it: `true`, `nothing`, `'text'`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value).removesuffix(".0")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def in_flow(value: object) -> str:
    """A value on one line of YAML: `{low: 1, high: 8}`."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {in_flow(each)}' for name, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_flow, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def either(options: Sequence[str]) -> str:
    """`a, b or c`."""
    *first, last = options
    return f"{', '.join(first)} or {last}" if first else last


def closest(name: object, known: Iterable[str]) -> list[str]:
    """The known name nearest to `name`, or nothing when none comes close."""
    return difflib.get_close_matches(str(name), list(known), n=1)


def nearest(name: object, known: Sequence[str]) -> str:
    """` (did you mean 'x'?)`, or ` (known: ...)` when nothing comes close."""
    close = closest(name, known)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})"


def unknown(name: object, kind: str, known: Sequence[str]) -> str:
    """That `name` is no `kind`, with the nearest that is."""
    return f"{str(name)!r} is not a known {kind}{nearest(name, known)}"


def repeated(values: Sequence[object], written: Sequence[object]) -> str:
    """What to say of two equal `values`, as they were `written`; empty when all differ."""
    firsts: dict[tuple[bool, object], object] = {}
    for value, text in zip(values, written, strict=True):
        key = (isinstance(value, bool), value)
        if key in firsts:
            return _same(firsts[key], text)
        firsts[key] = text
    return ""


def _same(first: object, second: object) -> str:
    if found(first) == found(second):
        return f"{found(first)} is listed twice (leave one out)"
    return f"{found(first)} and {found(second)} are the same choice (leave one out)"


def refuse(message: str, *, within: str = "") -> NoReturn:
    """Raises what pydantic collects as a fault, of the field `within` a model if it is named."""
    kind = "sweep"
    raise PydanticCustomError(kind, "{error}", {"within": within, "error": message})


def structural_faults(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """Each of pydantic's findings about a `model`, in plain words.

    Left out: a missing field that is there under a misspelt name, which is a fault already.
    """
    findings = [(details, _place_parts(details)) for details in error.errors()]
    meant = {
        (*parts[:-1], *closest(parts[-1], _fields_at(parts[:-1], model)))
        for details, parts in findings
        if details["type"] == "extra_forbidden"
    }
    return [
        Fault(place=".".join(parts), message=_message(details, parts, model))
        for details, parts in findings
        if details["type"] != "missing" or tuple(parts) not in meant
    ]


def absent_faults(
    places: Sequence[str], data: Mapping[str, Any], model: type[BaseModel]
) -> list[Fault]:
    """A fault for each dotted place of a file where nothing is, see `structural_faults`.

    Left out: a place within a section that is missing itself, or that is no mapping.
    """
    return [
        Fault(place=place, message=f"must be given{_example(place.split('.'), model)}")
        for place in places
        if _is_missing(place.split("."), data, model)
    ]


def _is_missing(parts: list[str], data: Mapping[str, Any], model: type[BaseModel]) -> bool:
    section: Any = data
    for part in parts[:-1]:
        section = section.get(part) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or section.get(parts[-1]) is not None:
        return False
    known = _fields_at(parts[:-1], model)
    return not any(closest(name, known) == parts[-1:] for name in section if name not in known)


def _place_parts(details: ErrorDetails) -> list[str]:
    location = list(details["loc"])
    if location[:1] == ["space"] and len(location) > 2 and location[2] in FORMS:
        del location[2]
    if location[-1:] == ["[key]"]:
        location.pop()
    within = details.get("ctx", {}).get("within")
    return [str(part) for part in [*location, *([within] if within else [])]]


def _message(details: ErrorDetails, parts: list[str], model: type[BaseModel]) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown(parts[-1], "field", _fields_at(parts[:-1], model))
    if kind == "missing":
        return f"must be given{_example(parts, model)}"
    if kind not in _RULES:
        return str(context.get("error", details["msg"]))
    rule = _RULES[kind].format(**{name: found(limit) for name, limit in context.items()})
    return f"{rule}, found {found(value)}{_mend(kind, value)}"


def _mend(kind: str, value: object) -> str:
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return " (leave the quotes out)" if re.fullmatch(r"[\d._]+", value) else ""
    if kind == "bool_type" and isinstance(value, str):
        return " (YAML 1.2 has the words true and false alone)"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f" (put it in quotes: '{found(value)}')"
    return ""


def _model_at(parts: Sequence[str], model: type[BaseModel]) -> type[BaseModel] | None:
    for part in parts:
        field = model.model_fields.get(part)
        kinds = get_args(field.annotation) or (field.annotation,) if field else ()
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not models:
            return None
        model = models[0]
    return model


def _fields_at(parts: Sequence[str], model: type[BaseModel]) -> tuple[str, ...]:
    if parts[:1] == ["space"]:
        return ("low", "high", "log", "step")
    owner = _model_at(parts, model)
    return tuple(owner.model_fields) if owner else ()


def _example(parts: Sequence[str], model: type[BaseModel]) -> str:
    owner = _model_at(parts[:-1], model)
    field = owner.model_fields.get(parts[-1]) if owner else None
    examples = field.examples if field else None
    return f" (such as `{parts[-1]}: {in_flow(examples[0])}`)" if examples else ""
