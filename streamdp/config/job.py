"""A job in writing: what is public about the data, which model learns, from where, and under which cap.

`Definition` is what makes the model: it goes into the store as text (it holds no paths and no secrets) and its
fingerprint must not change between runs. `JobConfig` adds where things are and how often to commit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from hashlib import blake2b
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from streamdp.config.file import FileSourceConfig
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.config.settings import Settings
from streamdp.config.shuffle import ShuffleSourceConfig
from streamdp.errors import BudgetError, ConfigError
from streamdp.privacy.guarantees import Budget, parse_budget, with_amount
from streamdp.runtime.defaults import COMMIT_RECORDS

if TYPE_CHECKING:
    from streamdp.data.records import Encoder, Source
    from streamdp.data.schema import Schema
    from streamdp.estimators.base import StreamEstimator
    from streamdp.ledger.ledger import Ledger
    from streamdp.optim.domains import Domain
    from streamdp.optim.losses import Loss

STORE_ENDINGS = ("", ".key", ".lock", "-journal", "-shm", "-wal")
"""What follows the store's path in the names of its files."""

ESTIMATORS = (
    "LDPASGDClassifier",
    "LDPASGDRegressor",
    "LDPSGDClassifier",
    "LDPSGDRegressor",
    "PanPrivateClassifier",
    "PanPrivateRegressor",
    "ShuffleClassifier",
    "ShuffleRegressor",
    "UserLevelLDPClassifier",
    "UserLevelLDPRegressor",
    "WindowedClassifier",
    "WindowedRegressor",
)


def _budget_text(value: Any) -> str:
    """A budget in its one spelling, so that `eps=1.0` and `epsilon=1` make the same fingerprint."""
    return str(parse_budget(value))


BudgetText = Annotated[str, BeforeValidator(_budget_text)]


class _Misfit(ValueError):
    """Two settings that contradict each other; `key` is the one to name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class TargetConfig(Settings):
    """The column to predict: a number (cut to `bounds`, divided by `scale`), or one of `classes`."""

    column: str
    classes: list[str] | None = None
    bounds: tuple[float, float] | None = None
    scale: float | None = None

    @field_validator("classes", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return [_label(item) for item in value] if isinstance(value, list) else value


def _label(item: Any) -> Any:
    """The text a CSV file would hold for a label that YAML read as a truth value or a whole number."""
    return str(item) if isinstance(item, bool | int) else item


class SchemaConfig(Settings):
    """The declared public schema; `features` gives each column bounds [low, high] or a list of categories."""

    features: dict[str, tuple[float, float] | list[str]] = Field(min_length=1)
    target: TargetConfig
    subject: str | None = None
    budget: str | None = None

    @field_validator("features", mode="before")
    @classmethod
    def _bounds_or_categories(cls, value: Any) -> Any:
        """Tell the two apart here, for one message instead of one for each branch of the union."""
        if not isinstance(value, dict):
            return value
        for name, declared in value.items():
            numbers = isinstance(declared, list | tuple) and all(
                isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)
                for item in declared
            )
            texts = isinstance(declared, list | tuple) and all(isinstance(item, str) for item in declared)
            if not declared or not (texts or (numbers and len(declared) == 2)):
                raise ValueError(
                    f"{name!r}: expected two numbers [low, high], both finite, or a list of categories as text"
                    " (put quotes around a category that looks like a number or a truth value)"
                )
        return value

    def build(self) -> Schema:
        from streamdp.data.schema import Schema

        return Schema(
            self.features,
            self.target.column,
            target_bounds=self.target.bounds,
            target_scale=1.0 if self.target.scale is None else self.target.scale,
            classes=self.target.classes,
            subject=self.subject,
            budget=self.budget,
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.build()
        return self


class DomainConfig(Settings):
    """Where theta is kept: `ball: R`, or `box: [low, high]`."""

    ball: float | None = None
    box: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.ball is None) == (self.box is None):
            raise ValueError("expected ball: R, or box: [low, high]")
        self.build()
        return self

    def build(self) -> Domain:
        from streamdp.optim.domains import Box, L2Ball

        return L2Ball(self.ball) if self.ball is not None else Box(*self.box)  # type: ignore[misc]


class ModelConfig(Settings):
    """The estimator and its parameters, under the names that its constructor has; unset ones take its defaults.

    `loss` is a name, or a mapping with `name` and the loss's own parameters. `seed` is for tests: not private.
    """

    estimator: Literal[ESTIMATORS]  # type: ignore[valid-type]
    loss: str | dict[str, Any] | None = None
    budget: BudgetText = ""  # the estimator's default
    mechanism: Literal["auto", "laplace", "gaussian", "privunit", "none"] | None = None
    eta: float | None = None
    alpha: float | None = None
    domain: DomainConfig | None = None
    intercept: bool | None = None
    seed: int | None = None
    horizon: int | None = None
    batch_size: int | None = None
    smoothness: float | None = None
    strong_convexity: float | None = None
    method: str | None = None
    calibration: Literal["tight", "paper"] | None = None
    items_per_user: int | None = None
    window: int | None = None
    window_seconds: float | None = None
    spread: float | None = None
    centre: Literal["zero", "asked"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("budget") is None:
            batched = not str(value.get("estimator")).startswith("LDP")
            return value | {"budget": "eps=1,delta=1e-6" if batched else "eps=1"}
        return value

    @property
    def batched(self) -> bool:
        """Whether all records share the estimator's budget, which then belongs to its state."""
        return not self.estimator.startswith("LDP")

    @field_validator("loss")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if value is not None:
            build_loss(value)
        return value


def build_loss(choice: str | Mapping[str, Any]) -> Loss:
    """A loss from its name or from `{name: ..., parameter: ...}`. Raises `ConfigError` that lists what there is."""
    from streamdp.optim.losses import LOSSES

    parameters = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = parameters.pop("name", None)
    if name not in LOSSES:
        raise ConfigError(f"expected one of {', '.join(LOSSES)}")
    known = signature(LOSSES[name]).parameters
    for key, value in parameters.items():
        if key not in known:
            raise ConfigError(f"{name} has the parameters {', '.join(known)}, and no {key!r}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{key} of {name} must be a number")
    return LOSSES[name](**parameters)


class Definition(Settings):
    """What makes the model what it is. Its text holds nothing secret."""

    schema_: SchemaConfig = Field(alias="schema")
    model: ModelConfig
    cap: BudgetText | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        classifier = self.model.estimator.endswith("Classifier")
        if classifier != (self.schema_.target.classes is not None):
            need = "a schema.target with classes" if classifier else "a schema.target without classes"
            raise _Misfit("model", f"{self.model.estimator} needs {need}")
        if self.cap is not None and self.schema_.subject is None:
            raise _Misfit("cap", "needs schema.subject, the column that says whose record it is")
        if self.model.estimator.startswith(("UserLevel", "Windowed")) and self.schema_.subject is None:
            raise _Misfit("model", f"{self.model.estimator} needs schema.subject, whose records it protects together")
        try:
            self.build_estimator()
        except (ConfigError, BudgetError) as error:
            raise _Misfit("model", str(error)) from None
        self._check_cap()
        return self

    def _check_cap(self) -> None:
        """A cap that cannot count the job's kind of budget is an error now, and not at the first record."""
        if self.cap is not None:
            from streamdp.ledger.ledger import Ledger

            try:
                with Ledger(self.cap) as ledger:
                    admitted = ledger.admit("anyone", parse_budget(self.model.budget))
            except BudgetError as error:
                raise _Misfit("cap", str(error)) from None
            if not admitted:
                raise _Misfit("cap", f"{self.cap} is below model.budget {self.model.budget}: no record would fit")

    @property
    def cap_budget(self) -> Budget | None:
        return None if self.cap is None else parse_budget(self.cap)

    def definition(self) -> Definition:
        """This, without what a subclass adds."""
        return Definition.model_construct(schema_=self.schema_, model=self.model, cap=self.cap)

    def text(self) -> str:
        """JSON of the definition, for the store; `read_definition` reads it back."""
        return self.definition().model_dump_json(by_alias=True, exclude_none=True)

    def fingerprint(self) -> str:
        """A digest of what must not change between the runs of a job.

        Where each record has its own budget, the default's amount may change; its kind and delta may not. A seed
        counts as a seed, whichever number: state that was learned without privacy never becomes private.
        """
        budget = parse_budget(self.model.budget)
        kind = str(budget if self.model.batched else with_amount(budget, 1.0))
        seed = None if self.model.seed is None else 0
        model = self.model.model_copy(update={"budget": kind, "seed": seed})
        fixed = Definition.model_construct(schema_=self.schema_, model=model, cap=self.cap)
        text = fixed.model_dump_json(by_alias=True, exclude_none=True)
        return blake2b(text.encode(), digest_size=16, person=b"streamdp-job").hexdigest()

    def build_schema(self) -> Schema:
        """The encoder of the job's records."""
        return self.schema_.build()

    def build_estimator(self, ledger: Ledger | None = None) -> StreamEstimator:
        """The estimator, empty. Raises `ConfigError` and `BudgetError` for parameters out of range."""
        import streamdp.estimators

        model = self.model
        build = getattr(streamdp.estimators, model.estimator)
        given: dict[str, Any] = {
            key: value
            for key, value in model
            if value is not None and key not in ("estimator", "loss", "budget", "domain")
        }
        if foreign := sorted(given.keys() - signature(build).parameters.keys()):
            raise ConfigError(f"{model.estimator} has no {foreign[0]}")
        if model.loss is not None:
            given["loss"] = build_loss(model.loss)
        if model.domain is not None:
            given["domain"] = model.domain.build()
        if self.schema_.target.classes is not None:
            given["classes"] = list(self.schema_.target.classes)
        estimator: StreamEstimator = build(
            budget=model.budget, features=list(self.build_schema().feature_names), ledger=ledger, **given
        )
        return estimator


class CommitConfig(Settings):
    """Commit after this many records, or after this many seconds with any, whichever comes first."""

    records: int = Field(default=COMMIT_RECORDS, ge=1)
    seconds: float = Field(default=5.0, gt=0)


def _kind_of_source(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return str(kind) if kind in ("kafka", "shuffle") else "file"


_SOURCE_TAGS = ("file", "kafka", "shuffle")
SourceConfig = Annotated[
    Annotated[FileSourceConfig, Tag("file")]
    | Annotated[KafkaSourceConfig, Tag("kafka")]
    | Annotated[ShuffleSourceConfig, Tag("shuffle")],
    Discriminator(_kind_of_source),
]


class JobConfig(Definition):
    """A whole `job.yaml`."""

    job: str = Field(min_length=1)
    source: SourceConfig
    store: str | None = None
    commit: CommitConfig = CommitConfig()
    publish: str | None = None
    holdout: str | None = None

    @model_validator(mode="after")
    def _shuffles(self) -> Self:
        if isinstance(self.source, ShuffleSourceConfig):
            if not self.model.estimator.startswith("Shuffle"):
                raise _Misfit(
                    "model", f"a source of type: shuffle needs a Shuffle* estimator, not {self.model.estimator}"
                )
            if self.cap is not None:
                raise _Misfit("cap", "with a shuffler nobody knows whose message it is, so no cap can be kept")
        return self

    @property
    def store_path(self) -> str:
        """The store's file, `<job>.db` by default."""
        return f"{self.job}.db" if self.store is None else self.store

    def build_schema(self) -> Schema:
        """The encoder of the job's records; a subject that is a message's key is no column of it."""
        if isinstance(self.source, KafkaSourceConfig) and self.source.subject_from == "key":
            return self.schema_.model_copy(update={"subject": None}).build()
        return self.schema_.build()

    def build_source(self, encoder: Encoder) -> Source:
        """Open the file. Raises `SourceError`, and `SchemaError` for a header that lacks a declared column."""
        if not isinstance(self.source, FileSourceConfig):
            raise ConfigError("source.type: expected csv or jsonl; a job that reads Kafka is run by `streamdp run`")
        return self.source.build(encoder)

    def located(self, folder: Path) -> JobConfig:
        """With relative paths resolved against `folder`."""

        def at(path: str | None) -> str | None:
            return path if path in (None, "-") or "://" in str(path) else os.path.normpath(folder / str(path))

        paths = ("path", "dead_letters", "avro_schema")
        update = {name: at(getattr(self.source, name)) for name in paths if hasattr(self.source, name)}
        if isinstance(self.source, ShuffleSourceConfig):
            update["shuffler_store"] = at(self.source.shuffler_store or f"{self.job}-shuffler.db")
        source = self.source.model_copy(update=update)
        return self.model_copy(
            update={
                "source": source,
                "store": at(self.store_path),
                "publish": at(self.publish),
                "holdout": at(self.holdout),
            }
        )


def load_config(path: str | os.PathLike[str]) -> JobConfig:
    """Read a `job.yaml`; relative paths in it are relative to its folder.

    Raises `ConfigError` that names the file, the line and the key, and never shows a value.
    """
    from streamdp.config.yaml12 import Document

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected UTF-8 text") from None
    document = Document(text, str(path))
    try:
        config = JobConfig.model_validate(document.data)
    except ValidationError as error:
        place, message = _first_problem(error)
        raise ConfigError(f"{path}, line {document.line(place)}: {message}") from None
    config = config.located(Path(path).resolve().parent)
    if (problem := _misplaced(config, str(path))) is not None:
        place, message = problem
        raise ConfigError(f"{path}, line {document.line(place)}: {message}")
    return config


def make_config(settings: Mapping[str, Any]) -> JobConfig:
    """A job from nested settings as `job.yaml` has them; paths stay as they are. Raises `ConfigError`."""
    try:
        config = JobConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(_first_problem(error)[1]) from None
    if (problem := _misplaced(config)) is not None:
        raise ConfigError(problem[1])
    return config


def _misplaced(config: JobConfig, job_file: str | None = None) -> tuple[tuple[str, ...], str] | None:
    """Two files of a job that are one, for what is written would replace the other; as `_first_problem`."""
    source, store = config.source, config.store_path.removeprefix("sqlite:///")
    path = source.path if isinstance(source, FileSourceConfig) else None
    files: list[tuple[tuple[str, ...], str | None]] = [
        (("the job's file",), job_file),
        (("source", "path"), None if path == "-" else path),
        (("source", "avro_schema"), getattr(source, "avro_schema", None)),
        (("holdout",), config.holdout),
        *((("store" + end,), store + end) for end in STORE_ENDINGS if "://" not in store),
        (("publish",), config.publish),
        (("source", "dead_letters"), getattr(source, "dead_letters", None)),
        (("source", "shuffler_store"), getattr(source, "shuffler_store", None)),
    ]
    if os.path.isdir(store):
        return ("store",), "store: expected a file, got a folder"
    found: dict[str, str] = {}
    for place, path in files:
        name = ".".join(place)
        if path is not None and (other := found.setdefault(os.path.realpath(path), name)) != name:
            return place, f"{name}: expected a file of its own, got the same as {other}"
    return None


def read_definition(text: str) -> Definition:
    """A definition from `Definition.text`. Raises `ConfigError`."""
    if not text:
        raise ConfigError("this store holds no model: it is a shuffler's, or was made without a configuration")
    try:
        return Definition.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"the store's configuration: {_first_problem(error)[1]}") from None


def _first_problem(error: ValidationError) -> tuple[tuple[str | int, ...], str]:
    """Where the first problem is, and what it is in one line."""
    problem = error.errors(include_url=False, include_input=False)[0]
    place = tuple(step for i, step in enumerate(problem["loc"]) if i != 1 or step not in _SOURCE_TAGS)
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, _Misfit):
        place = (cause.key,)
    match problem["type"]:
        case "extra_forbidden":
            message = "unknown setting"
        case "missing":
            message = "missing setting"
        case "value_error":
            message = str(cause)
        case "model_type" | "model_attributes_type":
            message = "expected a mapping of settings"
        case _:
            message = problem["msg"][:1].lower() + problem["msg"][1:]
    name = ".".join(str(step) for step in place)
    return place, f"{name}: {message}" if name else message
