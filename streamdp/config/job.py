"""Job configuration: the definition of the model, the source of its records, and where results are written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

from pydantic import Field, ValidationError, model_validator

from streamdp.config.definition import Definition
from streamdp.config.empty import check_filled
from streamdp.config.file import FileSourceConfig, FileType
from streamdp.config.http import (
    BATCH_SECONDS,
    COMMIT_SECONDS,
    CallsConfig,
    HTTPSourceConfig,
    ReportsSourceConfig,
    ServiceConfig,
)
from streamdp.config.kafka import KafkaSourceConfig
from streamdp.config.model import ModelConfig
from streamdp.config.problems import MisfitError, Problem, WrongSettingsError, problems
from streamdp.config.publish import Places
from streamdp.config.redis import RedisSourceConfig
from streamdp.config.settings import Settings, by_type, type_of
from streamdp.config.shuffle import MixerSourceConfig, ShuffleSourceConfig
from streamdp.config.spark import SparkSourceConfig
from streamdp.config.trust import ESTIMATORS, STATISTICS, completed
from streamdp.config.yaml12 import YamlText
from streamdp.errors import ConfigError, SourceError, file_errors
from streamdp.estimators.door import trust_of
from streamdp.learners.batches import Batches
from streamdp.learners.local_reports import LocalReports
from streamdp.learners.user_windows import Windows
from streamdp.ledger.periods import RenewingCap
from streamdp.runtime import defaults

if TYPE_CHECKING:
    from streamdp.data.schema import Schema
    from streamdp.store.store import Store

_KEY = "the message's key"
"""The column of subjects, in the text of a job whose subjects are the keys of messages."""
_STORE_ENDINGS = ("", ".key", ".last", ".lock", "-journal", "-shm", "-wal")
"""Suffixes of the store's path in the names of its files."""


class Accepted(NamedTuple):
    """What an operator accepts for one run."""

    budget: bool = False  # a larger budget or cap than before; the statement says both
    loss: bool = False  # a store that has lost commits by damage; the statement says so
    model: bool = False  # a new model in place of one with another schema or other parameters


NOTHING = Accepted()


class CommitConfig(Settings):
    """How often the job commits.

    - `records`, `seconds`: commit after this many records, or after this many seconds with at least one record,
      whichever is first.
    """

    records: int = Field(default=defaults.COMMIT_RECORDS, ge=1)
    seconds: float = Field(default=defaults.COMMIT_SECONDS, gt=0)


_LEARN_CALLS = (LocalReports, Batches)
_NEED_OF_CALLS = (
    "a source of type: http needs an LDP*, PanPrivate* or Shuffle* estimator (trust: nobody, process or shuffler), "
    "because calls wait for a commit, which a window of people has only at its end"
)


def _any_record(job: dict[str, object]) -> bool:
    """Whether the state may be committed after any record: not if it is a sum of batches."""
    model = job.get("model")
    if not isinstance(model, dict) or model.get("estimator") not in ESTIMATORS:
        return True
    if model["estimator"] == STATISTICS:
        return bool(model.get("trust") == "nobody")
    return trust_of(model["estimator"]) == "nobody"


SOURCES: dict[str, object] = {
    **dict.fromkeys(get_args(FileType), FileSourceConfig),
    "kafka": KafkaSourceConfig,
    "kafka reports": ReportsSourceConfig,
    "redis": RedisSourceConfig,
    "shuffle": ShuffleSourceConfig,
    "mixer": MixerSourceConfig,
    "http": HTTPSourceConfig,
    "spark": SparkSourceConfig,
}
"""The settings of each type of source. A package adds a `ReadConfig` by its entry points of `streamdp.sources`."""
SOURCES |= {found.name: found.load() for found in entry_points(group="streamdp.sources")}
if TYPE_CHECKING:
    _Served = KafkaSourceConfig | ShuffleSourceConfig | HTTPSourceConfig | SparkSourceConfig
    SourceConfig = MixerSourceConfig | ReportsSourceConfig | FileSourceConfig | RedisSourceConfig | _Served
else:
    SourceConfig = by_type(SOURCES, "csv")


class JobConfig(Definition):
    """A complete job configuration, the content of a `job.yaml`.

    - `schema`, `model`, `cap`, `validation`, `shuffled`: see `Definition`.
    - `expected_records`: about how many records there will be, a public number; delta is below its inverse.
    - `store`: the path of the store's file, or the URL of a PostgreSQL database. Jobs that share people share it, so
      that the cap holds over all of them. Default: `<job>.db`.
    - `commit`: how often the job commits. With `source.type: http`, `seconds` is 0.05 by default, and a commit begins
      as soon as no request waits to be learned; for trust process or shuffler it is 2, and ends the open batch.
    - `publish`: where the committed model or its statistics are published: a JSON file that is replaced after every
      commit, a sink, or a list of them. None: nowhere.
    - `holdout`: a public file with records to measure the model on. None: no measures.
    """

    job: str = Field(min_length=1)
    expected_records: int | None = Field(default=None, ge=1)
    source: SourceConfig
    store: str | None = None
    commit: CommitConfig = CommitConfig()
    publish: Places = Field(default_factory=list)
    holdout: str | None = None
    service: ServiceConfig = ServiceConfig()

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, value: object) -> object:
        """What follows from the source: the estimator, and for requests, which wait for their commit, its interval."""
        if isinstance(value, Mapping):
            value = completed(value)
        if isinstance(value, dict) and type_of(value.get("source")) in ("http", "kafka reports"):
            commit = value.get("commit", {})
            if isinstance(commit, dict):
                return value | {"commit": {"seconds": COMMIT_SECONDS if _any_record(value) else BATCH_SECONDS} | commit}
        return value

    @model_validator(mode="after")
    def _fits_source(self) -> Self:
        source = self.source
        if isinstance(source, CallsConfig):
            misfits = self._of_requests(source)
        elif isinstance(source, SparkSourceConfig):
            misfits = self._on_spark()
        elif isinstance(source, ShuffleSourceConfig):
            misfits = self._shuffled()
        else:
            misfits = iter(())
        for key, need in chain(misfits, self._of_any_source()):
            raise MisfitError(key, need)
        return self

    def _of_requests(self, source: CallsConfig) -> Iterator[tuple[str, str]]:
        """The settings that do not fit this source, and why: this and the other lists are made up to the first one."""
        reports = isinstance(source, ReportsSourceConfig)
        if reports and not self.build_estimator().takes_reports:
            need = "a model or statistics of trust: nobody, and not both, and no quantiles with every"
            yield "model", f"devices' reports need {need}"
        if self.has_model and not issubclass(self.model.kind.learns, _LEARN_CALLS):
            yield "model", f"{_NEED_OF_CALLS}, not {self.model.estimator}"
        if not self.has_model and self.model.trust == "window":
            yield "model", f"{_NEED_OF_CALLS}; write trust: process"
        if not self.store_on_server and source.most_shards > 1 and "shards" in source.model_fields_set:
            yield "source", "shards need a store on PostgreSQL, which several services can share"
        if self.schema_.time is not None:
            yield "schema", "requests have no times: leave time out, and a cap counts by their arrival"

    def _on_spark(self) -> Iterator[tuple[str, str]]:
        learns, statistics = self.model.kind.learns, self.statistics is not None
        if statistics and self.has_model and issubclass(learns, Batches):
            need = "on Spark, statistics beside a model need trust: nobody; or let two jobs share a store and a cap"
            yield "statistics", need
        estimator: Any = self.build_estimator()
        if not self.has_model and estimator.keeps_rows:
            need = "a budget with a delta and no texts that nobody declared, or trust: process, shuffler or nobody"
            yield "model", f"statistics of a window on Spark need {need}"
        if issubclass(learns, Windows) and not estimator.learner.sums_only:
            need = "a source of type: spark needs method: newton, which asks for sums over all users of a window"
            yield "model", f"{need}; this job's window, loss or method does not allow it"
        if self.validation is not None and issubclass(learns, Batches | Windows):
            yield "validation", "on Spark, LDP* estimators only can validate: leave it out"
        if isinstance(self.cap_budget, RenewingCap):
            yield "cap", "a job on Spark counts over all time: a cap that renews needs another source"
        if "commit" in self.model_fields_set:
            yield "commit", "each batch of Spark is one commit: set the reader's options, or trigger"

    def _shuffled(self) -> Iterator[tuple[str, str]]:
        if self.statistics is not None:
            yield "statistics", "the messages of a separate shuffler are for models: leave them out"
        if not self.model.kind.learns.shuffled:
            yield "model", f"a source of type: shuffle needs a Shuffle* estimator, not {self.model.estimator}"
        if self.validation is not None:
            yield "validation", "a shuffler's messages are mixed, so no record can answer: leave it out"
        if self.cap is not None:
            yield "cap", "a job with a shuffler cannot keep a cap: its messages name no subject"

    def _of_any_source(self) -> Iterator[tuple[str, str]]:
        source, subject = self.source, self.schema_.subject
        if self.model.cohort is not None and not isinstance(source, ShuffleSourceConfig):
            yield "model", "a cohort needs a source of type: shuffle, whose people answer in each round"
        if self.shuffled is not None and not isinstance(source, HTTPSourceConfig | MixerSourceConfig):
            yield "shuffled", "needs a source of type: http, whose reports come through the shuffler, or mixer"
        if self.shuffled is None and isinstance(source, MixerSourceConfig):
            yield "source", "a source of type: mixer needs shuffled, which says how many people it mixes"
        if self.key_is_subject and subject is not None and subject.type == "integer":
            need = "a subject of type integer needs source.subject_from: value, because keys are text"
            yield "schema", need
        if re.match("(sqlite|postgres|postgresql):(?!//)", self.store_path):  # else it is the name of a file
            yield "store", "expected a file, sqlite:///PATH or postgresql://HOST/DATABASE, got a URL without //"
        names_store = isinstance(source, ShuffleSourceConfig) and source.shuffler_store is None
        if (self.store is None or names_store) and re.search(r"[/\\\0]", self.job):
            yield "job", "expected a name without / and \\, because files are named after it; or set store"

    @property
    def store_path(self) -> str:
        """The path of the store's file, `<job>.db` by default, or the URL of its database."""
        return f"{self.job}.db" if self.store is None else self.store

    @property
    def store_on_server(self) -> bool:
        """Whether the store is a database on a server, which several machines may use."""
        return "://" in self.store_path and not self.store_path.startswith("sqlite:")

    def open_store(self, accepted: Accepted, *, shared: bool = False) -> Store:
        """Open the store of the job, or create it; `shared` by workers or not, with what the operator `accepted`.

        Raises the errors of `Store`, and `ConfigError` for a larger budget or cap that is not accepted.
        """
        from streamdp.store.store import Store

        def opened(shared: bool) -> Store:
            return Store(
                self.store_path,
                self.job,
                self.fingerprint(),
                cap=self.cap_budget,
                config=self.continued("", 0, False).config,
                shared=shared,
                continued=partial(self.continued, accept=accepted.budget, new_model=accepted.model and not shared),
                accept_loss=accepted.loss,
            )

        if not (accepted.model and shared):
            return opened(shared)
        with opened(False) as alone:  # no other worker may hold a job whose model is replaced
            notes = alone.notes
        store = opened(True)
        store.notes = [*notes, *store.notes]
        return store

    def of_source(self) -> dict[str, Any]:
        """See `Definition.of_source`."""
        return {"written": self.source.written, "own_budgets": self.source.own_budgets}

    def _text(self, model: ModelConfig) -> str:
        """See `Definition._text`. Keys of messages name people otherwise than a column, so the text says which."""
        source, subject = self.source, self.schema_.subject
        on_spark = isinstance(source, SparkSourceConfig) and source.format == "kafka" and source.subject_from == "key"
        if subject is None or not (self.key_is_subject or on_spark):
            return super()._text(model)
        schema = self.schema_.model_copy(update={"subject": subject.model_copy(update={"column": _KEY})})
        return super(JobConfig, self.model_copy(update={"schema_": schema}))._text(model)

    @property
    def key_is_subject(self) -> bool:
        """Whether the keys of messages are the subjects of their records."""
        keyed = isinstance(self.source, KafkaSourceConfig) and self.source.subject_from == "key"
        return keyed and self.schema_.subject is not None

    def build_schema(self) -> Schema:
        """The encoder of the job's records. If the message's key is the subject, no column is."""
        if self.key_is_subject:
            return self._encoder(self.schema_.model_copy(update={"subject": None}))
        return self._encoder(self.schema_)

    def located(self, folder: Path) -> JobConfig:
        """Return a copy with absolute paths: relative ones start from `folder`."""

        def at(path: object) -> object:
            if isinstance(path, list):
                return [at(each) for each in path]
            if isinstance(path, dict):
                return {key: at(each) for key, each in path.items()}
            if isinstance(path, Settings):
                return path
            return path if path in (None, "-") or "://" in str(path) else os.path.normpath(folder / str(path))

        paths = ("path", "dead_letters", "avro_schema", "schemas", "checkpoint")
        update = {name: at(getattr(self.source, name)) for name in paths if hasattr(self.source, name)}
        if isinstance(self.source, ShuffleSourceConfig):
            update["shuffler_store"] = at(self.source.shuffler_store or f"{self.job}-shuffler.db")
        places = {"store": at(self.store_path), "publish": at(self.publish), "holdout": at(self.holdout)}
        return self.model_copy(update=places | {"source": self.source.model_copy(update=update)})


def check_no_store(path: str, instead: str = "give the job that it is of, such as job.yaml") -> None:
    """Raise `ConfigError`, which says what to do `instead`, if a file is an SQLite database, and no job or data."""
    head = b""
    with suppress(OSError):
        if Path(path).is_file():  # a pipe would be read
            with open(path, "rb") as file:
                head = file.read(16)
    if head == b"SQLite format 3\0":
        raise ConfigError(f"{path} is a store, which a run makes: {instead}")


def load_config(path: str | os.PathLike[str], assignments: Sequence[tuple[Sequence[str], object]] = ()) -> JobConfig:
    """Read a `job.yaml`.

    Relative paths in it are relative to its folder. `assignments` replace settings of the file at `path`: their keys
    from the outermost, and their values. Raises `WrongSettingsError`, or another `ConfigError`; the message names the
    file, the line and the key, and shows no value.
    """
    try:
        with file_errors(ConfigError, path):
            text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        check_no_store(str(path))
        raise ConfigError(f"{path}: expected UTF-8 text") from None
    document = YamlText(text, str(path))
    for keys, value in assignments:
        assign(document.data, keys, value)
    check_filled(document, str(path))

    def where(place: Sequence[str | int]) -> str:
        given = any(tuple(place[: len(keys)]) == tuple(keys[: len(place)]) for keys, _ in assignments if place)
        return f"{path} with --set" if given else f"{path}, line {document.line(place)}"

    try:
        config = JobConfig.model_validate(document.data)
    except ValidationError as error:
        found = sorted(problems(error, _names()), key=lambda problem: document.line(problem[0]))
        raise WrongSettingsError([f"{where(place)}: {message}" for place, message in found]) from None
    config = config.located(Path(path).resolve().parent)
    if (problem := _shared_file(config, str(path))) is not None:
        place, message = problem
        raise ConfigError(f"{where(place)}: {message}")
    return config


def assign(settings: dict[str, Any], keys: Sequence[str], value: object) -> bool:
    """Set the `value` under nested `keys` of `settings`, as `--set` does. Returns whether it had one."""
    inner = settings
    for depth, key in enumerate(keys[:-1], 1):
        if inner.get(key) is None:
            inner[key] = {}
        inner = inner[key]
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {'.'.join(keys)}: {'.'.join(keys[:depth])} is not a mapping of settings")
    had = keys[-1] in inner
    inner[keys[-1]] = value
    return had


def make_config(settings: Mapping[str, object]) -> JobConfig:
    """Make a job configuration from nested `settings`, with the keys of a `job.yaml`. Relative paths stay relative.

    Raises `ConfigError`; the message names the key and shows no value.
    """
    try:
        config = JobConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError("\n".join(message for _, message in problems(error, _names()))) from None
    if (problem := _shared_file(config)) is not None:
        raise ConfigError(problem[1])
    return config


@cache
def _names() -> list[str]:
    described = JobConfig.model_json_schema(by_alias=True)
    return [name for part in (described, *described["$defs"].values()) for name in part.get("properties", ())]


def _shared_file(config: JobConfig, job_file: str | None = None) -> Problem | None:
    """Find two settings that name the same file: writing one would replace the other. Returns a `Problem`."""
    source, store = config.source, config.store_path.removeprefix("sqlite:///")
    data = source.paths if isinstance(source, FileSourceConfig) else []
    if isinstance(source, FileSourceConfig) and os.path.isdir(data[0]):
        with suppress(SourceError):
            data = source.files()
    schemas = getattr(source, "schemas", None)
    schemas = {*schemas.values()} if isinstance(schemas, dict) else {schemas}  # ids may share a file, also with the job
    files: list[tuple[tuple[str, ...], str | None]] = [
        (("the job's file",), job_file),
        *((("source", "path"), path) for path in data if path != "-"),
        (("source", "avro_schema"), getattr(source, "avro_schema", None)),
        *((("source", "schemas"), path) for path in schemas - {getattr(source, "avro_schema", None)}),
        (("holdout",), config.holdout),
        *((("store" + end,), store + end) for end in _STORE_ENDINGS if "://" not in store),
        *((("publish",), path) for path in config.publish if isinstance(path, str)),
        (("source", "dead_letters"), getattr(source, "dead_letters", None)),
        (("source", "shuffler_store"), getattr(source, "shuffler_store", None)),
    ]
    if os.path.isdir(store):
        return ("store",), "store: expected a file, got a folder"
    found: dict[str, str] = {}
    for place, path in files:
        name = ".".join(place)
        if path is None:
            continue
        if "\0" in path:
            return place, f"{name}: expected a path without the character 0"
        other, found[real] = found.get(real := os.path.realpath(path)), name
        if other == name == "source.path":
            return place, f"{name}: expected different files, got one of them again as {path}"
        if other not in (None, name):
            return place, f"{name}: expected a file of its own, got the same as {other}"
    return None
