"""Typed errors, the checks of a choice, a number and a path, and the hint for a mistyped name.

A message says what was expected, what was given and what to do. It never shows a record's values.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from numbers import Integral, Real
from typing import Any, NoReturn, Protocol, TypeGuard


def raise_alone(error: Exception) -> NoReturn:
    """Raise an `error` that has no cause and no context.

    `raise ... from None` hides the one that is being handled from tracebacks, and keeps it as `__context__`. Call
    this in place of it where that one may show a record's values, also inside a `@contextmanager`.
    """
    try:
        raise error
    except Exception:
        error.__cause__ = error.__context__ = None
        raise


BUDGETS = dict.fromkeys(("epsilon", "eps"), "eps=1") | {"delta": "eps=1,delta=1e-6", "mu": "mu=1"}
"""The budget that is meant by a name that other libraries have for a parameter; every way to set one hints at it."""


CLI_PACKAGES = ("polars", "rich", "tenacity", "typer", "yaml")
"""The packages of the extra `cli`, by the names of their modules."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the `known` public name that is most like a wrong `name`, or "" if none is."""
    from difflib import get_close_matches

    by_case = {other.lower(): other for other in known}
    found = get_close_matches(name.lower(), by_case, n=1, cutoff=0.6)
    return f"; did you mean {by_case[found[0]]!r}?" if found else ""


def needs(what: str, extra: str) -> str:
    """Say that something needs an `extra` that is not installed, and how to install it: no index has streamdp yet."""
    return f"{what} needs the extra {extra}: pip install '.[{extra}]' in a copy of streamdp's repository"


class _Closes(Protocol):
    def close(self) -> object: ...


@contextlib.contextmanager
def closed_on_error(thing: _Closes) -> Iterator[None]:
    """Close a `thing`, such as a connection, if what is done within the with statement fails."""
    try:
        yield
    except BaseException:
        thing.close()
        raise


@contextlib.contextmanager
def cli_packages(what: str) -> Iterator[None]:
    """Raise `NotAvailableError` in the place of the error that a package of the extra `cli` is not installed.

    `what` needs the package. Every other error passes.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in CLI_PACKAGES:
            raise
        raise NotAvailableError(needs(what, "cli")) from None


def listed(names: Collection[str], most: int = 9) -> str:
    """Return `names` for a message, in order; of more than `most` the first ones and how many others there are."""
    shown = sorted(names)[:most]
    return ", ".join(shown) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def check_choice(name: str, value: object, choices: Collection[str], others: str = "") -> None:
    """Raise `ConfigError` unless the `value` of the setting `name` is one of the texts `choices`.

    `others` says in the message what else is possible.
    """
    if not (isinstance(value, str) and value in choices):
        hint = suggestion(value, choices) if isinstance(value, str) else ""
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}{others}, got {value!r}{hint}")


def is_number(value: object) -> TypeGuard[float]:
    """Return whether any `value` is a real number that fits a double, and not a truth value."""
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < 1024
    return isinstance(value, Real)


def check_level(level: object) -> None:
    """Raise `ConfigError` unless `level` is a confidence level, above 0 and below 1."""
    if not is_number(level) or not 0 < level < 1:
        got = level if is_number(level) else type(level).__name__
        raise ConfigError(f"level: expected a number above 0 and below 1, such as 0.95, got {got}")


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise `ConfigError` unless the `value` of the setting `name` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ConfigError(f"{name}: expected a whole number from {least} to {most}, got {value!r}")


def check_path(what: str, path: Any) -> str:
    """Return the `path` of a file, text or a path object, as text. Messages say `what` it is of.

    Raises `ConfigError` for anything else, such as bytes, and for text that no file can have as its name.
    """
    with contextlib.suppress(TypeError, ValueError):  # ValueError: a character that file names cannot have
        text = os.fspath(path)
        if isinstance(text, str) and b"\0" not in os.fsencode(text):
            return text
    raise ConfigError(f"{what}: expected the path of a file, got {type(path).__name__}")


def check_texts(**texts: object) -> None:
    """Raise `ConfigError` unless all `texts`, by name, are texts that a database can keep."""
    for name, text in texts.items():
        with contextlib.suppress(UnicodeEncodeError):
            if isinstance(text, str) and b"\0" not in text.encode():
                continue
        raise ConfigError(f"{name}: expected Unicode text without NUL, got {type(text).__name__}")


class PrivacyWarning(UserWarning):
    """What is done with a private estimator reveals more about the records than its statement says."""


class DoubtWarning(UserWarning):
    """A model may be no better than a constant, as far as was released. No privacy is lost."""


class CostWarning(UserWarning):
    """A promise costs more records than it needs to. No privacy is lost; Python's filter of warnings silences it."""


def reason_of(error: BaseException) -> str:
    """Return why something failed by what was raised, `error`, without values: only our own errors never show any."""
    return str(error) if isinstance(error, StreamDPError) else f"unexpected {type(error).__name__}"


def place_of(error: BaseException | None) -> str:
    """The file and line where an `error` was raised."""
    from traceback import walk_tb

    place = "an unknown place"
    for frame, line in walk_tb(None if error is None else error.__traceback__):
        place = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
    return place


class StreamDPError(Exception):
    """Base of every error that streamdp raises on purpose."""


class ConfigError(StreamDPError, ValueError):
    """A setting is missing, unknown, or contradicts another setting."""


class SchemaError(StreamDPError, ValueError):
    """A record or a header does not fit the declared public schema."""


class RefusedReportError(SchemaError):
    """A report that the agreed randomizer could not have made now. Nothing was counted or learned.

    The `reason` is as it is counted (see docs/reports.md).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the report was refused: {reason}")
        self.reason = reason


class BudgetError(StreamDPError, ValueError):
    """A privacy budget is malformed, or the mechanism cannot serve it."""


class QueriesExhaustedError(StreamDPError):
    """A run of private queries has answered all the queries that its budget pays for."""


class NotAtBoundaryError(StreamDPError):
    """The state holds unreleased contributions and must not leave memory now."""


class NotAvailableError(StreamDPError):
    """The requested result does not exist for this estimator, or does not exist yet. The message says why."""


class TooFewUsersError(ConfigError):
    """A window has fewer users than its method needs, as `message` says. No record was read.

    The attribute `needed` is the number of users that it needs.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class SourceError(StreamDPError):
    """A source cannot be opened, read, or moved to a position."""


class SourceUnavailableError(SourceError):
    """The source does not answer. Nothing was lost; the same call may be repeated."""


class SinkError(StreamDPError):
    """A sink has not taken what was published. Nothing was lost; the last commit is sent again."""


class ShardUnavailableError(SourceUnavailableError):
    """One shard of the source is not available at present; the others are."""


class QueueFullError(SourceError):
    """Too many records wait. Nothing of the call was taken; it may be repeated."""


class ReusedKeyError(SourceError):
    """A key of a call came with another body than before. Nothing of the call was taken."""


class TooManyBadRecordsError(SourceError):
    """The share of undecodable records exceeds the declared limit."""


class NothingLearnedError(SourceError):
    """A run has read records and learned none of them. What it counted is committed."""


class StoreError(StreamDPError):
    """The store cannot be used."""


class StoreVersionError(StoreError):
    """The store has a newer format than this program knows. It was not changed."""


class StoreDamagedError(StoreError):
    """The store fails its integrity checks. It was not changed."""


class StoreLostError(StoreDamagedError):
    """The store has lost commits that it had acknowledged. It was not changed."""


class StoreMismatchError(StoreError):
    """The store belongs to another job, another model or another subject key. It was not changed."""


class StoreBusyError(StoreError):
    """Another process holds this job."""


class StoreUnavailableError(StoreError):
    """The database does not answer. Committed data are unchanged; the same call may be repeated."""


class ServiceError(StreamDPError):
    """A service does not answer, or refuses a call, as `message` says. The HTTP `status` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ConflictError(StoreError):
    """Another process has committed what this commit did not know of. Roll back to the last commit and learn again."""


class LedgerConflictError(ConflictError):
    """Another worker has spent the budget of the same subjects. Roll back to the last commit and learn again."""


class FencedError(StoreError):
    """Another worker has claimed this shard. What was learned from it here was never visible and must be dropped.

    The `message` says so; the attribute `shard` is None if it is unknown.
    """

    def __init__(self, message: str, shard: Any = None) -> None:
        super().__init__(message)
        self.shard = shard


@contextlib.contextmanager
def file_errors(kind: type[StreamDPError], what: object) -> Iterator[None]:
    """Raise an error of this `kind` in place of an `OSError`, with `what` was done before the reason of the system."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {(error.strerror or type(error).__name__).lower()}") from None


@contextlib.contextmanager
def needing(what: str, extra: str, kind: type[StreamDPError] = ConfigError) -> Iterator[None]:
    """Raise `ConfigError`, or an error of this `kind`, in place of one of an import: `what` needs this `extra`."""
    try:
        yield
    except ImportError:
        raise kind(needs(what, extra)) from None
