"""What an operator changes in a database: the cap of all people, and the caps of single ones. Jobs may be running."""

import contextlib
import os
from collections.abc import Iterator, Mapping

from streamdp.data.records import Subject
from streamdp.database.opening import open_database
from streamdp.errors import ConfigError, StoreMismatchError
from streamdp.ledger.ledger_rows import change_cap, lock, read_cap, read_fingerprint
from streamdp.ledger.paging import PagedRows
from streamdp.ledger.periods import Cap, allows_more, parse_cap, same_kind
from streamdp.ledger.stored import StoredLedger
from streamdp.ledger.subject_key import given_key, matching_key
from streamdp.privacy.guarantees import Budget
from streamdp.store.tables import STORE_FORMAT


def set_cap(url_or_path: str | os.PathLike[str], cap: Cap | str, *, accept: bool = False) -> None:
    """Change the cap of a database to one of the same kind; for `url_or_path` see `Store`.

    Running jobs stop at their last commit, because their statements name the old one. Raises `BudgetError` for a
    malformed cap, `ConfigError` for another kind and for a larger one without `accept`, and the errors of `Store`.
    """
    cap = parse_cap(cap)
    with _open(url_or_path) as (ledger, rows):
        if not same_kind(cap, ledger.cap):
            raise ConfigError(f"the cap is {ledger.cap}, and the new one may differ in its amounts only")
        if allows_more(cap, ledger.cap) and not accept:
            raise ConfigError(f"the cap is {ledger.cap}, and {cap} is a weaker promise to people: say --accept-budget")
        if cap != ledger.cap:
            with rows.errors(), rows.open_connection().begin():
                lock(rows.open_connection())
                change_cap(rows.open_connection(), cap)


def set_caps(
    url_or_path: str | os.PathLike[str], caps: Mapping[Subject, Budget | str | None], *, accept: bool = False
) -> int:
    """Give subjects their own caps, for all jobs of a database and for good. They are on disk when this returns.

    For `url_or_path` see `Store`, and for `caps` see `Store.set_caps`. Returns how many of the subjects have no record
    that was charged: a job may write them otherwise. Raises as `Ledger.set_cap`, the errors of `Store`, and
    `ConfigError` for a cap that allows a subject more than before, without `accept`.
    """
    with _open(url_or_path) as (ledger, rows):
        more = unknown = 0
        for subject, cap in caps.items():
            before = ledger.cap_of(subject)
            ledger.set_cap(subject, cap)
            more += allows_more(ledger.cap_of(subject), before)
            unknown += not ledger.spent(subject).records
        if more and not accept:
            raise ConfigError(f"a larger cap is a weaker promise to {more:,} of these people: say --accept-budget")
        with rows.errors(), rows.open_connection().begin():
            ledger.write_pending(rows.open_connection())
    return unknown


@contextlib.contextmanager
def _open(url_or_path: str | os.PathLike[str]) -> Iterator[tuple[StoredLedger, PagedRows]]:
    """The ledger of a database. Raises `StoreMismatchError` if no job there has a cap, and for another key."""
    database = open_database(url_or_path, None)
    with database.reading(STORE_FORMAT) as connection:  # an operator creates nothing
        cap, fingerprint = read_cap(connection), read_fingerprint(connection)
    if cap is None:
        raise StoreMismatchError(f"no job in {database.name} has a cap")
    key = matching_key(database.name, database.key_file, given_key(database.key_file, None), fingerprint)
    with contextlib.ExitStack() as stack:
        stack.callback(database.lock(shared=True))
        connection = stack.enter_context(contextlib.closing(database.open_for_writing(STORE_FORMAT)))
        rows = PagedRows(connection, database.errors, cap)
        yield StoredLedger.over(rows, cap, key), rows
