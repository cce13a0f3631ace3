"""The picked configuration as a file, with where it comes from, and how that file is read."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from search.choice.pick import Pick
from search.errors import Fault, FileFaultsError, InputError
from search.metric import Metric
from search.results import ParamValue
from search.sweep.document import read_document
from search.sweep.words import absent_faults, found, structural_faults
from search.units import format_bytes, format_value, parse_bytes

FORMAT = 1
"""The version of the file's layout, its first field."""

_LINE_WIDTH = 100
_COMMENT_COLUMN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The sweep that a pick comes from, and what a production run needs of it.

    Of `objective` and `command` one is empty; `num_tokens` is 0 where a trial ends by itself.
    `budget_bytes` and `cpus` are what one trial might use. `versions` are those that measured.
    `provenance` names data, their hash, the device. `mlflow_run` is empty when there is none.
    """

    sweep: str
    sweep_id: str
    objective: str
    data: Mapping[str, Any]
    num_tokens: int
    budget_bytes: int
    cpus: int
    versions: Mapping[str, str]
    metrics: tuple[Metric, ...]
    provenance: Mapping[str, ParamValue] = field(default_factory=dict)
    mlflow_run: str = ""
    command: str = ""
    compression: Mapping[str, Any] = field(default_factory=dict)


def _bytes(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except InputError as error:
            raise ValueError(str(error)) from error
    return value


def _layout(value: object) -> object:
    if value != FORMAT:
        msg = f"this version reads files of layout {FORMAT}, found {found(value)} (export it again)"
        raise ValueError(msg)
    return value


def _scalar(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"must be finite, found {value}"
        raise ValueError(msg)
    if value is not None and not isinstance(value, str | int | float):
        msg = f"must be one value, found {found(value)}"
        raise ValueError(msg)
    return value


_Scalar = Annotated[Any, BeforeValidator(_scalar)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class PickedTrial(_Model):
    """How long the trials of the sweep trained; 0 tokens where each ended by itself."""

    tokens: int = Field(ge=0, examples=[60_000])


class PickedMemory(_Model):
    """What one trial might use, in bytes or with a unit."""

    budget: Annotated[int, BeforeValidator(_bytes), Field(gt=0, examples=[167_772_160])]


class PickedResources(_Model):
    """The CPU cores a trial had; what was measured holds for as many."""

    cpus: int = Field(gt=0, examples=[1])


class PickedCompression(_Model):
    """How the compressed model is served, and whom it learned from; the rest is among `params`."""

    serving_batch_size: int = Field(default=1, ge=1)
    teacher: str | None = None


class PickedConfig(_Model):
    """A production configuration. `measured`, `predicted` and `provenance` are for the reader."""

    paretune: Annotated[int, BeforeValidator(_layout)] = Field(examples=[FORMAT])
    objective: str = Field(default="", examples=["objectives.language_model:LanguageModel"])
    command: str = ""
    data: dict[str, Any] = Field(default_factory=dict)
    params: dict[str, _Scalar]
    compression: PickedCompression | None = None
    trial: PickedTrial
    memory: PickedMemory
    resources: PickedResources
    measured: dict[str, float] = Field(default_factory=dict)
    predicted: dict[str, _Scalar] = Field(default_factory=dict)
    provenance: dict[str, Any] = Field(default_factory=dict)


def export_yaml(pick: Pick, origin: Origin) -> str:
    """The pick as a YAML file that `read_pick` reads back to exactly the same values."""
    by_itself = bool(origin.provenance.keys() & {"function", "command"})
    params = dict(pick.trial.params) if by_itself else resolved_params(pick)
    document = CommentedMap(
        paretune=FORMAT,
        **({"command": origin.command} if origin.command else {"objective": origin.objective}),
        data=_plain(origin.data),
        params=_plain(params),
        **({"compression": _plain(origin.compression)} if origin.compression else {}),
        trial=CommentedMap(tokens=origin.num_tokens),
        memory=CommentedMap(budget=origin.budget_bytes),
        resources=CommentedMap(cpus=origin.cpus),
        measured=_measured(pick, origin.metrics),
        predicted=_predicted(pick),
        provenance=_plain(_provenance(pick, origin)),
    )
    _comment(document["memory"], "budget", format_bytes(origin.budget_bytes))
    document.yaml_set_start_comment(
        f"Picked from the sweep {origin.sweep!r} by paretune."
        f" {'How to run it' if by_itself else 'Train it for production'}: paretune train THIS_FILE"
    )
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = _LINE_WIDTH
    yaml.dump(document, stream)
    return stream.getvalue()


def _plain(value: Any) -> Any:
    """What YAML has words for: mappings, lists, and the texts that enumerations stand for."""
    if isinstance(value, Mapping):
        return CommentedMap((str(name), _plain(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str | Path) else value


def resolved_params(pick: Pick) -> dict[str, ParamValue]:
    """All params of the pick, `micro_batch_size: equal` as the number that it stands for."""
    params = dict(pick.trial.params)
    batch_size, world_size = params.get("batch_size"), params.get("world_size", 1)
    if params.get("micro_batch_size") == "equal" and isinstance(batch_size, int):
        params["micro_batch_size"] = batch_size // (world_size if type(world_size) is int else 1)
    return params


def _measured(pick: Pick, metrics: tuple[Metric, ...]) -> CommentedMap:
    """Metrics in base units, with what they are on a screen beside those that have a unit."""
    measured = CommentedMap(pick.trial.metrics)
    for metric in metrics:
        if metric.unit and metric.name in measured:
            _comment(measured, metric.name, format_value(measured[metric.name], metric.unit))
    return measured


def _predicted(pick: Pick) -> CommentedMap:
    predicted = pick.trial.predicted
    if predicted is None:
        return CommentedMap()
    sizes = CommentedMap(
        peak_memory=predicted.expected_bytes,
        low=predicted.low_bytes,
        high=predicted.high_bytes,
    )
    for name, size in sizes.items():
        _comment(sizes, name, format_bytes(size))
    sizes["phase"] = predicted.phase
    return sizes


def _comment(section: CommentedMap, name: str, text: str) -> None:
    section.yaml_add_eol_comment(text, name, column=_COMMENT_COLUMN)


def _provenance(pick: Pick, origin: Origin) -> dict[str, Any]:
    run = {"mlflow_run": origin.mlflow_run} if origin.mlflow_run else {}
    return {
        "sweep": origin.sweep,
        "sweep_id": origin.sweep_id,
        "trial": pick.trial.number,
        **run,
        "reason": pick.reason,
        "conditions": list(pick.conditions),
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": dict(origin.versions),
        **{key: value for key, value in origin.provenance.items() if value is not None},
    }


def read_pick(path: Path) -> PickedConfig:
    """The configuration that a file holds.

    Raises:
        FileFaultsError: with everything that is wrong in it, in the order of the file.
    """
    document = read_document(_text(path), str(path))
    faults = list(document.repeated)
    try:
        config = PickedConfig.model_validate(dict(document.data))
    except ValidationError as error:
        faults += structural_faults(error, PickedConfig)
    if "command" not in document.data:
        faults += absent_faults(("objective",), document.data, PickedConfig)
    if faults:
        raise FileFaultsError(str(path), document.in_order(faults))
    return config


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        message = "there is no such file (paretune export NAME -o FILE writes one)"
    except (OSError, UnicodeDecodeError) as error:
        message = f"it cannot be read as text: {error}"
    raise FileFaultsError(str(path), [Fault(place="", message=message)])
