"""Arguments, checks and messages that several commands share."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.errors import ConfigError, SourceError, SourceUnavailableError, StoreUnavailableError, needs

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

    from streamdp.config.job import JobConfig
    from streamdp.estimators.estimator import Estimator
    from streamdp.privacy.guarantees import Budget
    from streamdp.store.store import Store

StorePath = Annotated[
    str,
    typer.Argument(
        metavar="JOB.YAML|STORE", help="The job, or its store, such as late.db or postgresql://HOST/DATABASE."
    ),
]
JobName = Annotated[str | None, typer.Option(help="The name of the job, if the database has several.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TextSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="How the text is written, as in a job: source.delimiter=';', source.encoding=latin-1, source.decimal=',',"
        " source.thousands, source.units, source.comment or source.skip_lines; once for each.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of a job, such as model.eta=0.1 or source.delimiter=';'; once for each. It replaces that"
        " of a JOB.YAML. The value is read as YAML.",
    ),
]
AcceptBudget = Annotated[
    bool,
    typer.Option(
        "--accept-budget",
        help="Go on with a weaker promise than before, such as a larger budget; the statement says both.",
    ),
]
AcceptLoss = Annotated[
    bool,
    typer.Option("--accept-loss", help="Go on with a store that has lost commits by damage; the statement says so."),
]
NewModel = Annotated[
    bool,
    typer.Option(
        "--new-model",
        help="Begin a new model, because schema or model have changed: what people have spent is kept, and they spend"
        " again; the statement says both.",
    ),
]
Trace = Annotated[
    bool, typer.Option("--trace", help="Export OpenTelemetry spans by OTLP, to where OTEL_* variables say.")
]
IdleSeconds = Annotated[float | None, typer.Option(min=0, help="Kafka: stop after this many seconds without records.")]


def shown(text: str) -> str:
    """A text of the data on one line of a terminal, without what it would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(seconds: float) -> str:
    """A time in seconds since 1970 as ISO 8601 (UTC); 0 is `never`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else "never"


def store_of(what: str, job: str | None = None) -> tuple[str, str | None]:
    """Return the store and the name of a job: `what` is its file, which names both, or the store itself.

    Raises `ConfigError` for a file of a job that cannot be read.
    """
    if not what.endswith((".yaml", ".yml")):
        return what, job
    from streamdp.config.job import load_config

    config = load_config(what)
    return config.store_path, job or config.job


def say(message: str) -> None:
    """Print a `message` on one line of standard error."""
    print(f"streamdp: {' '.join(message.split())}", file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """Print a warning, a `sentence`, on standard error."""
    say(f"warning: {sentence}")


def warn_if_not_private(estimator: "Estimator") -> None:
    """Print a warning for an estimator whose releases are not private."""
    if not estimator.guarantee.private:
        warn("this model is NOT private: it has a seed, or no mechanism")


def warn_if_weak(budget: "Budget", records: int | None) -> None:
    """Print a warning if a budget protects little, also among so many `records`, if they are known."""
    from streamdp.privacy.guarantees import weakness

    if (said := weakness(budget, records)) is not None:
        warn(said)


def say_opened(store: "Store") -> None:
    """Say which jobs share people with a new job, what is kept of a model that is replaced, and of a lower cap."""
    for note in store.notes:
        say(note)


def say_cheaper(config: "JobConfig") -> None:
    """Say once what LDP costs a job whose raw records this process sees."""
    from streamdp.config.prospect import cheaper

    if (sentence := cheaper(config)) is not None:
        say(sentence)


def need_stdin() -> None:
    """Raise `SourceError` if standard input is closed."""
    if sys.stdin is None:
        raise SourceError("standard input is closed")


def need_clients() -> None:
    """Raise `ConfigError` if the extra `kafka` is not installed."""
    from importlib.util import find_spec

    if not all(map(find_spec, ("kafka", "tenacity", "prometheus_client"))):
        raise ConfigError(needs("Kafka", "kafka"))


def patient() -> "Retrying":
    """Return what calls a function each second until the brokers or the database are available, and says so."""
    from tenacity import Retrying, retry_if_exception_type, wait_fixed

    def tell(call: "RetryCallState") -> None:
        assert call.outcome is not None, "it has failed"
        say(f"{call.outcome.exception()}; trying again")

    unavailable = retry_if_exception_type((SourceUnavailableError, StoreUnavailableError))
    return Retrying(retry=unavailable, wait=wait_fixed(1), before_sleep=tell)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise `ConfigError` in place of an `OSError`, because a file or a folder, `path`, cannot be written."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        if isinstance(error, FileNotFoundError):
            why = f"there is no folder {os.path.dirname(path)}"
        raise ConfigError(f"cannot write {path}: {why}") from None


@contextmanager
def naming(brokers: str) -> Iterator[None]:
    """Check the `brokers`, and add them to the message of a `SourceUnavailableError`: the client does not name them."""
    from streamdp.config.kafka import check_brokers

    check_brokers(brokers)
    try:
        yield
    except SourceUnavailableError as error:
        raise (error if brokers in str(error) else SourceUnavailableError(f"{error}; brokers: {brokers}")) from None
