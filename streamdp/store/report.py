"""What a database says to its operator: its jobs, and how near people are to the caps that hold over all of them.

It counts people and names none. The export has the keyed hashes of subjects: with the key as well, guesses of
subjects can be tested.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from streamdp.database.interface import Connection
from streamdp.database.opening import open_database
from streamdp.errors import StoreMismatchError
from streamdp.ledger.caps import cap_numbers, cap_of_numbers
from streamdp.ledger.ledger_rows import read_caps
from streamdp.ledger.paging import spends_in
from streamdp.ledger.periods import Cap, RenewingCap, budgets_of, parse_cap
from streamdp.ledger.rows import CAP, CAP_DELTA, DELTA, EPSILON, MU_SQUARED, PURE_MU_SQUARED, RECORDS
from streamdp.ledger.subject_key import period_of
from streamdp.privacy.guarantees import ApproxDP, Budget, GaussianDP
from streamdp.store.tables import ALL_JOBS, OF_JOB, STORE_FORMAT, JobRow, ShardRow

SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)
"""The upper ends of the classes of people by the share of their cap that is spent."""


@dataclass(frozen=True)
class JobStatus:
    """What one job has learned, over all shards."""

    job: str
    capped: bool  # whether the ledger admits its records
    learned: int
    refused: int
    dead_letters: int
    left_out: int
    committed_at: float  # the last commit, in seconds since 1970 (UTC); 0 before the first
    shards: dict[str, tuple[int, str]]  # by name: number of the last commit, JSON position after it


@dataclass(frozen=True)
class LedgerStatus:
    """The state of the ledger of a database, and of its jobs.

    If the cap renews, `people` counts subjects in the present period, `own_caps` those with a total of their own, and
    `records` the charged records in all periods that are kept. People over their cap, because it was lowered, are in
    the last class of `spent`.
    """

    caps: list[tuple[str, float]]  # all caps so far, oldest first: the text, and since when in seconds since 1970 (UTC)
    people: int
    own_caps: int
    records: int
    older: int | None  # if the cap renews, the number of rows of subjects in other periods
    # people who have spent at most each share of `SHARES` of their cap, and more than the share before
    spent: tuple[int, ...]
    jobs: list[JobStatus]  # in the order of their names


def ledger_status(url_or_path: str | os.PathLike[str], now: float | None = None) -> LedgerStatus:
    """Read the state of the ledger of a database. Jobs may be running; nothing is changed.

    For `url_or_path` see `Store`; `now` is in seconds since 1970 (UTC), by default that of the clock. Raises
    `StoreError` and its kinds; `StoreMismatchError` if no job there has a cap.
    """
    database = open_database(url_or_path, None)
    with database.reading(STORE_FORMAT) as connection:
        caps = read_caps(connection)
        if not caps:
            raise StoreMismatchError(f"no job in {database.name} has a cap")
        cap = parse_cap(caps[-1][0])
        present = cap.codes(np.array([time.time() if now is None else now])) if isinstance(cap, RenewingCap) else None
        classes = np.zeros(len(SHARES), dtype=np.int64)
        people = own = records = older = 0
        for keys, rows in spends_in(connection).every(connection):
            own += int(np.count_nonzero(rows[:, CAP]))
            if present is not None:
                periods = period_of(keys)
                records += int(rows[periods > 0, RECORDS].sum())
                older += int(np.count_nonzero((periods > 0) & (periods != present)))
                rows = rows[periods == present]
            else:
                records += int(rows[:, RECORDS].sum())
            classes += _classes(rows, cap)
            people += len(rows)
        jobs = [_job(connection, JobRow(*row)) for row in connection.fetch(f"{ALL_JOBS} ORDER BY job")]
    return LedgerStatus(
        caps, people, own, records, older if present is not None else None, tuple(classes.tolist()), jobs
    )


def _job(connection: Connection, job: JobRow) -> JobStatus:
    rows = [ShardRow(*row) for row in connection.fetch(OF_JOB, {"job": job.job})]
    names = ("learned", "refused", "dead", "left_out")
    learned, refused, dead, left_out = (sum(getattr(row, name) for row in rows) for name in names)
    shards = {f"{row.topic}/{row.partition}" if row.topic else "whole": (row.seq, row.position) for row in rows}
    last = max((row.committed_at for row in rows), default=0.0)
    return JobStatus(job.job, bool(job.capped), learned, refused, dead, left_out, last, shards)


def _classes(rows: np.ndarray, cap: Cap) -> np.ndarray:
    place = np.searchsorted(SHARES, _shares(rows, budgets_of(cap)[0]) * (1 - 1e-9))
    return np.bincount(np.minimum(place, len(SHARES) - 1), minlength=len(SHARES))


def _shares(rows: np.ndarray, cap: Budget) -> np.ndarray:
    """The share of its cap that each subject has spent; of epsilon, delta or mu, whichever is largest."""
    _, most, most_delta = cap_numbers(cap)
    own = rows[:, CAP] > 0
    limit = np.where(own, rows[:, CAP], most)
    if isinstance(cap, GaussianDP):
        return np.sqrt((rows[:, MU_SQUARED] + rows[:, PURE_MU_SQUARED]) / limit)
    shares = rows[:, EPSILON] / limit
    if isinstance(cap, ApproxDP):
        limits = np.column_stack([limit, np.where(own, rows[:, CAP_DELTA], most_delta)])
        shares = np.maximum(shares, rows[:, DELTA] / limits[:, 1])
        some = np.flatnonzero(rows[:, MU_SQUARED])  # mu against the mu of the cap
        kinds, which = np.unique(limits[some], axis=0, return_inverse=True)
        mus = np.array([GaussianDP.from_approx(ApproxDP(*kind)).mu for kind in kinds.tolist()])
        shares[some] = np.sqrt(rows[some, MU_SQUARED]) / mus[which.ravel()]
    return shares


COLUMNS = ("subject_hash", "records", "epsilon", "delta", "mu", "cap", "period")
"""The columns of an export. `period` is the first second of a period since 1970 (UTC); empty for all time."""


def export_rows(url_or_path: str | os.PathLike[str]) -> Iterator[tuple[object, ...]]:
    """Yield `COLUMNS`, then what each subject has spent over all jobs; the cap only if it is the subject's own.

    If the cap renews, each row is of a subject in a period, or of its total. For `url_or_path` see `Store`. Raises
    `StoreError` and its kinds.
    """
    with open_database(url_or_path, None).reading(STORE_FORMAT) as connection:
        yield COLUMNS
        caps = read_caps(connection)
        cap = parse_cap(caps[-1][0]) if caps else None
        length = cap.length if isinstance(cap, RenewingCap) else 0
        for keys, rows in spends_in(connection).every(connection):
            hashes, periods = keys.astype("<u8").tobytes(), period_of(keys).tolist()
            for i, row in enumerate(rows.tolist()):
                epsilon, delta, mu_squared, _, records, most, most_delta = row
                own = str(cap_of_numbers(most, most_delta)) if most else ""
                begin = (periods[i] - 1) * length if length and periods[i] else ""
                yield hashes[16 * i : 16 * i + 16].hex(), int(records), epsilon, delta, mu_squared**0.5, own, begin
