"""Typed errors. Each says what was expected, what came and what to do; none shows a record's values."""

from __future__ import annotations

from typing import Any


class StreamDPError(Exception):
    """Base of every error that streamdp raises on purpose."""


class ConfigError(StreamDPError, ValueError):
    """A setting is missing, unknown or contradicts another one."""


class SchemaError(StreamDPError, ValueError):
    """A record or a header does not fit the declared public schema."""


class BudgetError(StreamDPError, ValueError):
    """A privacy budget is malformed, or the mechanism cannot serve it."""


class QueriesExhaustedError(StreamDPError):
    """A run of private queries has answered all the queries that its budget pays for."""


class NotAtBoundaryError(StreamDPError):
    """The state holds unreleased contributions and must not leave memory now."""


class NotAvailableError(StreamDPError):
    """What was asked for does not exist for this estimator or not yet; the message says why."""


class TooFewUsersError(ConfigError):
    """A window has fewer users than its method needs; `needed` says how many. No record was looked at."""

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class SourceError(StreamDPError):
    """A source cannot be opened, read or sought."""


class SourceUnavailableError(SourceError):
    """The source gives no answer. Nothing was lost; the same call may be repeated."""


class TooManyBadRecordsError(SourceError):
    """The share of undecodable records went over the declared limit."""


class StoreError(StreamDPError):
    """The store cannot be used."""


class StoreVersionError(StoreError):
    """The store was written by a newer format than this program knows. It was left untouched."""


class StoreDamagedError(StoreError):
    """The store fails its integrity checks. It was left untouched."""


class StoreMismatchError(StoreError):
    """The store belongs to another job, another model or another subject key. It was left untouched."""


class StoreBusyError(StoreError):
    """Another process holds this job."""


class StoreUnavailableError(StoreError):
    """The database gives no answer. What was committed is unchanged; the same call may be repeated."""


class LedgerConflictError(StoreError):
    """Another worker spent from the same subjects meanwhile. Go back to the last commit and learn again."""


class FencedError(StoreError):
    """Another worker has claimed this shard: what was learned of it here was never visible and must be forgotten."""

    def __init__(self, message: str, shard: Any = None) -> None:
        super().__init__(message)
        self.shard = shard
