"""The sweep file as models: every field, what it means, what it is when left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from search.errors import InputError
from search.metric import Goal
from search.results import Params, ParamValue
from search.sweep.compression import CompressionSettings
from search.sweep.space import STRICT, Scalar, Space
from search.sweep.words import found, nearest, refuse
from search.units import MIB, format_bytes, parse_bytes, parse_seconds

REFUSALS_PER_TRIAL = 100
"""Refusals after which a sweep gives up, for each trial asked: a space of which one point in a
hundred fits is still searched."""

_NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
_LONGEST_NAME = 100
_LEAST_BUDGET = MIB
_DEFAULT_RISK, _HIGHEST_RISK = 0.02, 0.5


def _quantity(parse: Callable[[str], float], example: str) -> Callable[[object], object]:
    def parsed(given: object) -> object:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            refuse(f"must be a quantity such as {example!r}, found {found(given)}")
        try:
            return parse(str(given))
        except OverflowError:
            refuse(f"must be finite, found {found(given)} (try {example!r})")
        except InputError as error:
            refuse(str(error))

    return parsed


def _count(given: object) -> object:
    """A whole number that is written `60_000` or `1e6`; anything else as it is."""
    if isinstance(given, str) and re.match(_UNDERSCORED, given):
        return int(given)
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _goal(given: object) -> object:
    known = [goal.value for goal in Goal]
    if given not in known:
        refuse(f"must be 'min' or 'max', found {found(given)}{nearest(given, known)}")
    return Goal(str(given))


def _enough_bytes(num_bytes: int) -> int:
    if num_bytes < _LEAST_BUDGET:
        size = format_bytes(num_bytes)
        refuse(f"must be at least {format_bytes(_LEAST_BUDGET)}, found {size} (try '8 GiB')")
    return num_bytes


def _risk(given: object) -> object:
    """A probability below one half, else a mend: `2` is read as percent."""
    rule = f"must be a probability above 0 and below {_HIGHEST_RISK}, found {found(given)}"
    if isinstance(given, bool) or not isinstance(given, int | float):
        refuse(f"{rule} (2 percent is `risk: 0.02`)")
    if not 0 < given < _HIGHEST_RISK:
        as_percent = 1 <= given < 100 * _HIGHEST_RISK
        refuse(f"{rule} (try {given / 100 if as_percent else _DEFAULT_RISK:g})")
    return given


def _sound_name(name: str) -> str:
    if len(name) > _LONGEST_NAME:
        refuse(f"must have at most {_LONGEST_NAME} characters, found {len(name)}")
    if not re.fullmatch(_NAME, name):
        tidy = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "my-sweep"
        refuse(
            "must begin with a letter or a digit and go on with those, '.', '_' or '-' "
            f"(it names a folder), found {found(name)} (try {tidy!r})"
        )
    return name


def _some_goals(goals: dict[str, Goal]) -> dict[str, Goal]:
    if not goals:
        refuse("must name at least one metric (such as `bits_per_byte: min`)")
    return goals


_UNDERSCORED = r"^\d+(_\d+)+$"
"""Text to a strict reader of YAML 1.2, a number to people."""
_WrittenCount = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=_UNDERSCORED)]

Count = Annotated[int, Field(ge=1), BeforeValidator(_count, json_schema_input_type=_WrittenCount)]
Bytes = Annotated[
    int,
    AfterValidator(_enough_bytes),
    BeforeValidator(_quantity(parse_bytes, "8 GiB"), json_schema_input_type=int | str),
]
Seconds = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(_quantity(parse_seconds, "10 min"), json_schema_input_type=float | str),
]
_Probability = Annotated[float, Field(gt=0, lt=_HIGHEST_RISK)]
Risk = Annotated[_Probability, BeforeValidator(_risk, json_schema_input_type=_Probability)]
Goals = Annotated[
    dict[str, Annotated[Goal, BeforeValidator(_goal, json_schema_input_type=Goal)]],
    AfterValidator(_some_goals),
]


class MemorySettings(BaseModel):
    """How much memory one trial may use, and what happens to those that would use more."""

    model_config = STRICT

    budget: Bytes | None = Field(default=None, examples=["8 GiB"])
    """Memory one trial may use, such as `8 GiB` or `160 MiB`; a plain number is bytes. On a GPU its
    device memory, on a CPU what the process grows by. Default: a trial's share of what is here."""
    gate: bool = True
    """Whether to refuse a configuration that is predicted not to fit, before it starts. With
    `false` such trials are started and fail."""
    risk: Risk = _DEFAULT_RISK
    """The accepted probability that a configuration let through runs out of memory all the same:
    above 0 and below 0.5. A smaller risk keeps a larger margin between prediction and budget."""
    rescue: bool = False
    """Whether to change what does not fit so that it does, keeping `batch_size`: to a smaller
    `micro_batch_size`, then to `activation_checkpointing`. What `space` searches is not changed."""
    grows_with: tuple[str, ...] = Field(default=(), examples=[["batch_size", "width"]])
    """For a function or a command, whose memory is learned from its trials: the dimensions of which
    more never needs less memory. What ran out of memory then rules out all that is nowhere smaller.
    """
    device: str | None = Field(default=None, examples=["NVIDIA GeForce RTX 4090"])
    """The device the sweep is meant for, by name: elsewhere it is refused. Default: any."""

    @field_validator("grows_with", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        return tuple(given) if isinstance(given, list) else given

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.rescue and not self.gate:
            refuse("needs the gate, found gate: false (leave one of them out)", within="rescue")
        return self


class TrialSettings(BaseModel):
    """What one trial is given."""

    model_config = STRICT

    tokens: Count | None = Field(default=None, examples=[60_000])
    """Tokens each finished trial trains on, whatever its batch size and sequence length; samples,
    where the objective has no tokens. Required, but for a function or a command: that ends by
    itself, or with the report whose `tokens` reach them."""
    time_limit: Seconds | None = Field(default=None, examples=["10 min"])
    """The longest a trial may take, such as `90 s`, `10 min` or `2 h`; a plain number is seconds.
    Default: no limit."""


class ResourceSettings(BaseModel):
    """What the trials share among them."""

    model_config = STRICT

    cpus: int = Field(default=1, ge=1)
    """CPU cores for each trial."""
    concurrent: int | None = Field(default=None, ge=1)
    """The most trials at once. Default: as many as cores and memory allow."""
    price_per_hour: Annotated[float, Field(gt=0)] | None = Field(default=None, examples=[1.5])
    """What an hour of what one trial trains on costs, in any currency: of its GPU, or of its share
    of this machine. From it `cost_per_million_tokens` follows."""


class Sweep(BaseModel):
    """A sweep file: what to train, what to try, within which limits, and what is better."""

    model_config = STRICT

    name: Annotated[str, AfterValidator(_sound_name)] = Field(
        examples=["quickstart"], json_schema_extra={"pattern": f"^{_NAME}$"}
    )
    """What the sweep is called, in commands, in MLflow, and as the folder of its state. Letters,
    digits, `.`, `_` and `-`."""
    description: str = ""
    """What the sweep is for, kept with its record."""
    objective: str | None = Field(
        default=None, examples=["objectives.language_model:LanguageModel"]
    )
    """What to train: the dotted path `package.module:Name` of an Objective, or of a function
    `train(params, report)`."""
    command: str | None = Field(default=None, examples=["python train.py --lr {learning_rate}"])
    """Instead of `objective`: a command that trains by itself and prints its metrics as lines of
    JSON. `{name}` stands for the value of a dimension, or of the seed. No shell reads it."""
    data: dict[str, Any] = Field(default_factory=dict, examples=[{"corpus": "python-stdlib"}])
    """Handed to the objective when it is built: which data to train on."""
    space: Space = Field(examples=[{"batch_size": [8, 16, 32]}])
    """What to search: a list of choices or a range for each dimension."""
    fixed: dict[str, Scalar] = Field(default_factory=dict, examples=[{"width": 64}])
    """Dimensions with one value for all trials. Those neither here nor in `space` keep their
    defaults."""
    compression: CompressionSettings | None = Field(
        default=None, examples=[{"quantization": ["none", "int8-weight-only"]}]
    )
    """What is done to each trained model before it is judged as it would be deployed. With it
    trials are judged and measured after it too."""
    memory: MemorySettings = Field(default_factory=MemorySettings)
    """How much memory a trial may use."""
    trial: TrialSettings = Field(default=TrialSettings(), examples=[{"tokens": 60_000}])
    """What one trial is given: tokens and time."""
    objectives: Goals = Field(examples=[{"bits_per_byte": "min"}])
    """The metrics that count, each `min` or `max`. Several make a Pareto front."""
    trials: Count = Field(examples=[30])
    """Trials to train. What the memory gate refuses does not count."""
    seed: int = Field(default=0, ge=0)
    """Decides what is drawn from the space, and the weights and data order of each trial."""
    resources: ResourceSettings = Field(default_factory=ResourceSettings)
    """What the trials share among them: cores, and how many run at once."""
    stop_after_failures: Count = 5
    """That many failures of the same kind in a row end the sweep."""
    refusals: Count | None = None
    """Refusals by the memory gate after which the sweep gives up. Default: 100 for each trial."""

    @property
    def trained(self) -> str:
        """What is trained, as the file names it: the objective's path, or the command."""
        return self.objective or self.command or ""

    @property
    def most_refusals(self) -> int:
        """How many refusals end the sweep, the default worked out."""
        return self.refusals or REFUSALS_PER_TRIAL * self.trials

    def params_of(self, point: Mapping[str, ParamValue], defaults: Params) -> Params:
        """Every dimension of one trial: its defaults, then the seed, what is fixed, the point.

        `fp32` becomes `32-true`, so that one precision has one name.

        Args:
            point: a value for each dimension of the space.
            defaults: of what is neither searched nor fixed, see `default_params`.
        """
        params = {**defaults, "seed": self.seed, **self.fixed, **point}
        if "precision" in params:
            from search.training_params import Precision

            params["precision"] = Precision(str(params["precision"])).value
        return params
