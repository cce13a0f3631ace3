"""From a YAML file to a sweep that can run, or to all its faults at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from search.compression.params import Deployment, compression_metrics, teacher_of
from search.errors import Fault, FileFaultsError, InputError
from search.metric import KNOWN_METRICS, Metric
from search.objective import Objective, Untraced, load_objective, memory_neutral
from search.results import Params, ParamValue
from search.sweep import checks, compression
from search.sweep.combinations import (
    Candidates,
    Combination,
    candidates,
    combinations,
    group_faults,
    missing_faults,
)
from search.sweep.compression import CompressionSettings
from search.sweep.dimensions import (
    default_params,
    dimension_types,
    objective_group,
    training_group,
)
from search.sweep.document import read_document, section_of
from search.sweep.space import Space
from search.sweep.sweep import Sweep
from search.sweep.untraced import SEED, objective_faults, untraced, untraced_faults
from search.sweep.values import dimension_faults, name_faults, typed_section
from search.sweep.words import absent_faults, structural_faults

_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSweep:
    """A sweep file without faults: its fields, its objective on its data, its text as written."""

    sweep: Sweep
    objective: Objective | Untraced
    text: str

    def params_of(self, point: Mapping[str, ParamValue]) -> Params:
        """Every dimension of the trial at a point of the space, searched, fixed or left alone.

        Of what trains by itself nobody knows defaults, and its values stay as they were written.
        """
        if isinstance(self.objective, Untraced):
            return {SEED: self.sweep.seed, **self.sweep.fixed, **point}
        more = compression.defaults(self.sweep.compression)
        return self.sweep.params_of(point, {**default_params(self.objective), **more})

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Every metric that a trial may tell: the objective's, of training, of what is deployed."""
        more = compression_metrics(self.objective.metrics) if self.sweep.compression else ()
        known = (*self.objective.metrics, *KNOWN_METRICS, *more)
        return tuple({metric.name: metric for metric in known}.values())

    @property
    def memory_space(self) -> Space:
        """The space without the dimensions that the objective says change no tensor's size."""
        if isinstance(self.objective, Untraced):
            return self.sweep.space
        neutral = memory_neutral(self.objective)
        kept = {name: each for name, each in self.sweep.space.items() if name not in neutral}
        return Space.model_construct(kept)  # which may be empty

    @property
    def deployment(self) -> Deployment | None:
        """How models are served once they are trained and compressed; None where they are not."""
        if isinstance(self.objective, Untraced):
            return None
        name, space = "quantization", self.sweep.space
        values = space[name].values() if name in space else (self.sweep.fixed.get(name),)
        return compression.deployment(self.sweep.compression, self.objective, values or ())

    @property
    def provenance(self) -> Mapping[str, str | int]:
        """What its trials were made of: data, and whom they learn from."""
        teacher = teacher_of(self.deployment)
        return {**self.objective.provenance, **({"teacher": teacher.name} if teacher else {})}


def read_sweep(path: Path, *, capacity_bytes: int | Callable[[], int]) -> LoadedSweep:
    """The sweep of a file. Nothing is written anywhere.

    Args:
        path: a YAML file.
        capacity_bytes: what the device here has; called only when the file states a budget.

    Raises:
        FileFaultsError: with every fault that can be told, in the order of the file.
    """
    return parse_sweep(_text(path), path=str(path), capacity_bytes=capacity_bytes)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        message = "there is no such file ('paretune init' writes one to start from)"
    except IsADirectoryError:
        message = "this is a folder (name the sweep file in it)"
    except OSError as error:
        message = f"it cannot be read: {error.strerror} (check its path and permissions)"
    except UnicodeDecodeError as error:
        message = f"this is not text: byte {error.start} is not UTF-8 (save it as UTF-8)"
    raise FileFaultsError(str(path), [Fault(place="", message=message)])


def parse_sweep(text: str, *, path: str, capacity_bytes: int | Callable[[], int]) -> LoadedSweep:
    """The sweep of a text, as `read_sweep`; `path` is what faults call it."""
    document = read_document(text, path)
    data = compression.joined(document.data)
    faults = [*document.repeated, *compression.section_faults(document.data), *_field_faults(data)]
    faults += checks.budget_faults(section_of(data, "memory"), capacity_bytes)
    draft, more = _judged(data)
    faults += more
    if draft is None or not isinstance(draft.objective, Untraced):
        faults += absent_faults(("objective", "trial", "trial.tokens"), data, Sweep)
    if faults or draft is None:
        placed = [compression.in_its_section(fault, document.data) for fault in faults]
        raise FileFaultsError(path, document.in_order(placed))
    sweep = Sweep.model_validate({**data, **draft.sections})
    return LoadedSweep(sweep=sweep, objective=draft.objective, text=text)


def _field_faults(data: Mapping[str, Any]) -> list[Fault]:
    try:
        Sweep.model_validate(data)
    except ValidationError as error:
        return structural_faults(error, Sweep)
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """An objective on its data, and the sections whose values have the types it declares."""

    objective: Objective | Untraced
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _judged(data: Mapping[str, Any]) -> tuple[_Draft | None, list[Fault]]:
    """What only the objective can tell: its dimensions, its data, its metrics."""
    subject = untraced(data)
    if subject is not None:
        return _Draft(objective=subject), list(untraced_faults(data, subject))
    kind, groups, faults = _declared(data.get("objective"))
    own, groups = groups[-1], (*groups, *compression.groups(data))
    faults += objective_faults(data)
    types = {name: each for group in groups for name, each in dimension_types(group).items()}
    space, fixed = section_of(data, "space"), section_of(data, "fixed")
    known = candidates(space, fixed, types)
    faults += dimension_faults(space, fixed, types)
    tried = {group: combinations(group, known) for group in groups}
    for group in groups:
        faults += group_faults(group, known, tried[group])
    if kind is None:
        return None, faults
    faults += name_faults(space, fixed, tuple(types))
    faults += [fault for group in groups for fault in missing_faults(group, [*space, *fixed])]
    known_metrics = (*kind.metrics, *compression.metrics(data, kind.metrics))
    faults += checks.metric_faults(section_of(data, "objectives"), known_metrics)
    settings = checks.typed_settings(kind, section_of(data, "data"))
    objective, more = checks.opened(kind, settings)
    faults += more
    if objective is None:
        return None, faults
    faults += _amount_faults(objective, data, known, tried[own])
    if compression.groups(data):
        faults += compression.rank_faults(known)
        defaults = default_params(objective)
        faults += compression.model_faults(objective, defaults, known, tried[own])
        faults += compression.teacher_faults(objective, data, defaults, tried[own])
    sections = {"space": typed_section(space, types), "fixed": typed_section(fixed, types)}
    return _Draft(objective=objective, sections={**sections, "data": settings}), faults


def _declared(path: object) -> tuple[type[Objective] | None, tuple[type, ...], list[Fault]]:
    """The objective's class and the groups of dimensions that are known, with what is wrong."""
    if not isinstance(path, str):
        return None, (training_group(),), []
    try:
        kind = load_objective(path)
        return kind, (training_group(), objective_group(kind)), []
    except InputError as error:
        return None, (training_group(),), [Fault(place="objective", message=str(error))]


def _amount_faults(
    objective: Objective, data: Mapping[str, Any], known: Candidates, tried: Sequence[Combination]
) -> Iterator[Fault]:
    """Faults of how much there is: data for the longest samples, tokens for the largest step."""
    defaults = default_params(objective)
    points: list[Params] = [{**defaults, **each.params} for each in tried if not each.refusal]
    if not points:
        return
    longest = max(points, key=objective.tokens_per_sample)
    yield from checks.window_faults(objective, longest, section_of(data, "data"))
    batches = [each.value for each in known.get("batch_size", ())] or [defaults["batch_size"]]
    largest = max(size for size in batches if isinstance(size, int))
    trial = section_of(data, "trial")
    yield from checks.token_faults(trial, largest, objective.tokens_per_sample(longest))


def judged_params(
    *,
    objective: str,
    data: Mapping[str, Any],
    params: Mapping[str, ParamValue],
    settings: CompressionSettings | None = None,
) -> tuple[Objective | None, Params, list[Fault]]:
    """One whole configuration outside a sweep, judged as a sweep's `fixed` section would be.

    What comes back: its objective on its data, its params with the defaults of those left out, and
    what is wrong with them. The objective is None when something is, or it trains by itself.
    `settings` are those of compression, where there is any.
    """
    given = {compression.SECTION: settings.model_dump(exclude_none=True)} if settings else {}
    draft, faults = _judged({"objective": objective, "data": data, "fixed": params, **given})
    if faults or draft is None or isinstance(draft.objective, Untraced):
        return None, params, [_of_params(fault) for fault in faults]
    defaults = {**default_params(draft.objective), **compression.defaults(settings)}
    return draft.objective, {**defaults, **draft.sections["fixed"]}, []


def _of_params(fault: Fault) -> Fault:
    message = fault.message.replace("under 'fixed'", "under 'params'").replace(", or search it", "")
    return Fault(place=re.sub(r"^fixed\b", "params", fault.place), message=message)


def sweep_schema() -> dict[str, Any]:
    """The JSON Schema of a sweep file, every field described, for editors to complete from."""
    schema = Sweep.model_json_schema(schema_generator=_SchemaOfForms)
    return {"$schema": _SCHEMA_DIALECT, **schema, "title": "paretune sweep file"}


class _SchemaOfForms(GenerateJsonSchema):
    """Takes a range with whole bounds as either kind of range: which one, the dimension decides."""

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> dict[str, Any]:
        """Any of the forms, instead of exactly one."""
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}
