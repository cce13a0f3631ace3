"""The `compression` section of a sweep file: dimensions among its settings, and their faults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema

from search.compression.params import (
    DIMENSIONS,
    CompressionParams,
    Deployment,
    DistillationParams,
    Quantization,
    compression_metrics,
)
from search.compression.trained import find_teacher
from search.errors import Fault, InputError
from search.metric import Metric
from search.sweep.combinations import Candidates, Combination
from search.sweep.dimensions import dimension_types, group_defaults
from search.sweep.document import section_of
from search.sweep.space import STRICT
from search.sweep.words import found

if TYPE_CHECKING:
    from search.objective import Objective
    from search.results import Params, ParamValue

SECTION = "compression"
_TEACHER = "teacher"

_Dimension = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": kind} for kind in ("number", "string", "array", "object")]}),
]


class CompressionSettings(BaseModel):
    """What is done to each trained model before it is judged as it would be deployed.

    Its dimensions take one value for all trials, or a list or a range to search.
    """

    model_config = STRICT

    pruned_channels: _Dimension = Field(default=None, examples=[[0, 0.5]])
    """Share of each layer's hidden units, or channels, that are taken out: from 0 to below 1."""
    pruned_weights: _Dimension = Field(default=None, examples=[{"low": 0, "high": 0.8}])
    """Share of each layer's weights that become 0: from 0 to below 1."""
    quantization: _Dimension = Field(default=None, examples=[["none", "int8-weight-only"]])
    """What numbers the weights of linear layers are kept in: `none`, `int8-weight-only`, or
    `int8-dynamic`, which computes in int8 too. Needs the extra `quant`."""
    teacher: str | None = Field(default=None, examples=["quickstart"])
    """A trained pick that models learn from: the name of its sweep, `NAME/LABEL` for a pick kept
    under a label, or the folder of a production run."""
    distillation_weight: _Dimension = Field(default=None, examples=[[0, 0.5]])
    """Share of the loss that compares a model with its teacher: from 0 to 1."""
    distillation_temperature: _Dimension = Field(default=None, examples=[2])
    """What softens the outputs of both: above 0."""
    serving_batch_size: int = Field(default=1, ge=1)
    """Samples that are served at once when memory, latency and throughput are measured."""


def joined(data: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep file's data with the dimensions of its `compression` among all others.

    Those with one value are fixed, the others searched; what is there already stays.
    """
    given = data.get(SECTION)
    if not isinstance(given, Mapping):
        return dict(data)
    known = {name for group in groups(data) for name in dimension_types(group)}
    chosen = {
        name: value
        for name, value in given.items()
        if name in known and not _sections_with(name, data)
    }
    searched = {name: each for name, each in chosen.items() if isinstance(each, list | Mapping)}
    fixed = {name: each for name, each in chosen.items() if name not in searched}
    result = dict(data)
    for section, dimensions in (("space", searched), ("fixed", fixed)):
        before = {} if data.get(section) is None else data[section]
        if dimensions and isinstance(before, Mapping):
            result[section] = {**before, **dimensions}
    result[SECTION] = {name: value for name, value in given.items() if name not in chosen}
    return result


def in_its_section(fault: Fault, data: Mapping[str, Any]) -> Fault:
    """A fault of a dimension at the place where the file gives it."""
    section, _, place = fault.place.partition(".")
    name = place.partition(".")[0]
    moved = name in section_of(data, SECTION) and not _sections_with(name, data)
    if section not in ("space", "fixed") or not moved:
        return fault
    return replace(fault, place=f"{SECTION}.{place}")


def _sections_with(name: str, data: Mapping[str, Any]) -> list[str]:
    """Which sections for all dimensions name one."""
    return [section for section in ("space", "fixed") if name in section_of(data, section)]


def groups(data: Mapping[str, Any]) -> tuple[type, ...]:
    """The dataclasses whose fields are the dimensions that a `compression` section brings."""
    given = data.get(SECTION)
    if not isinstance(given, Mapping):
        return ()
    taught = given.get(_TEACHER) is not None
    return (CompressionParams, DistillationParams) if taught else (CompressionParams,)


def defaults(settings: CompressionSettings | None) -> dict[str, ParamValue]:
    """The default of each dimension that a `compression` section brings, as plain values."""
    if settings is None:
        return {}
    chosen = groups({SECTION: settings.model_dump()})
    return {name: value for group in chosen for name, value in group_defaults(group).items()}


def metrics(data: Mapping[str, Any], metrics_of_objective: Sequence[Metric]) -> tuple[Metric, ...]:
    """The metrics that a `compression` section brings."""
    return compression_metrics(metrics_of_objective) if groups(data) else ()


def deployment(
    settings: CompressionSettings | None, objective: Objective, params: Collection[ParamValue]
) -> Deployment | None:
    """What follows training by the settings of a file; None where there are none.

    Args:
        settings: of the file.
        objective: what is trained.
        params: what `quantization` may be in it.
    """
    if settings is None:
        return None
    return Deployment(
        serving_batch_size=settings.serving_batch_size,
        quantizes=any(each not in (None, Quantization.NONE) for each in params),
        teacher=find_teacher(settings.teacher, objective) if settings.teacher else None,
    )


def section_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Dimensions of the section that are given elsewhere too, or that lack a teacher."""
    given = section_of(data, SECTION)
    for name in given:
        for section in _sections_with(name, data) if name in DIMENSIONS else ():
            message = f"is given under {section!r} too (leave it out of one of the two)"
            yield Fault(place=f"{SECTION}.{name}", message=message)
        if name.startswith("distillation_") and given.get(_TEACHER) is None:
            message = (
                f"needs a teacher (such as `{_TEACHER}: quickstart`, the sweep of a trained pick)"
            )
            yield Fault(place=f"{SECTION}.{name}", message=message)


def rank_faults(known: Candidates) -> Iterator[Fault]:
    """Trials of several processes: what is compressed and served is the model of one."""
    for candidate in known.get("world_size", ()):
        if candidate.value != 1:
            message = (
                f"does not go with compression, found {found(candidate.value)} (leave world_size "
                "at 1, or leave compression out)"
            )
            yield Fault(place=candidate.place, message=message)
            return


def model_faults(
    objective: Objective, defaults: Params, known: Candidates, models: Sequence[Combination]
) -> Iterator[Fault]:
    """Dimensions of compression that a model of the space does not allow, each told once.

    Args:
        objective: whose models they are.
        defaults: of all dimensions.
        known: values of each dimension of compression that is given.
        models: the objective's dimensions, as they are tried together.
    """
    from search.compression.checks import refusal

    kinds = _kinds(models)
    for name in dimension_types(CompressionParams):
        for candidate in known.get(name, ()):
            found = (
                (kind, refusal(objective, {**defaults, **kind.params}, name, candidate.value))
                for kind in kinds
            )
            kind, why = next((each for each in found if each[1]), (None, ""))
            if kind is not None:
                yield Fault(place=candidate.place, message=f"{why}{_example(kind, _words(kind))}")
                break


def teacher_faults(
    objective: Objective, data: Mapping[str, Any], defaults: Params, models: Sequence[Combination]
) -> Iterator[Fault]:
    """Why models cannot learn from the teacher that is named: it, or one of them, does not do."""
    from search.compression.checks import teaching_refusal

    named = section_of(data, SECTION).get(_TEACHER)
    if not isinstance(named, str):
        return
    place = f"{SECTION}.{_TEACHER}"
    try:
        teacher = find_teacher(named, objective)
    except InputError as error:
        yield Fault(place=place, message=str(error))
        return
    for model in [each for each in models if not each.refusal][:_MOST_TAUGHT]:
        if why := teaching_refusal(objective, {**defaults, **model.params}, teacher):
            yield Fault(place=place, message=f"{why}{_example(model, model.chosen)}")
            return


_MOST_TAUGHT = 32


def _kinds(models: Sequence[Combination]) -> list[Combination]:
    """One model of each kind: numbers change how large it is, words and switches what it is."""
    kinds: dict[tuple[tuple[str, ParamValue], ...], Combination] = {}
    for model in models:
        if not model.refusal:
            kinds.setdefault(tuple(_words(model).items()), model)
    return list(kinds.values())[:_MOST_KINDS]


_MOST_KINDS = 16


def _words(model: Combination) -> dict[str, ParamValue]:
    return {name: each for name, each in model.params.items() if isinstance(each, str | bool)}


def _example(model: Combination, names: Iterable[str]) -> str:
    """Those values of a model that are searched, to be told after a reason."""
    searched = [name for name in names if model.chosen[name].searched]
    values = ", ".join(f"{name} {found(model.params[name])}" for name in searched)
    return f" (at {values})" if values else ""
