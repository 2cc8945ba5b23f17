"""The tables of a ledger, as `database.interface.Format` has them.

An SQLite file has `spend_pages` and `spend_log` (see `sqlite_pages`). A PostgreSQL database has `spends`, one row for
each subject (see `postgres_rows`).
"""

TABLES = (
    # one row (see `ledger_rows`)
    "CREATE TABLE ledger (mark BYTEA NOT NULL, key_fingerprint BYTEA, version BIGINT NOT NULL)",
    # the newest row is the cap
    "CREATE TABLE caps (number SERIAL PRIMARY KEY, cap TEXT NOT NULL, since DOUBLE PRECISION NOT NULL)",
    # the caps that were in force while anything was charged; a cap may be there several times
    "CREATE TABLE charged (cap TEXT NOT NULL, own INTEGER NOT NULL)",  # own is 1: the cap of a single subject
)
ON_SERVER = (
    # The fill factor lets a new version of a row fit its page, so that its index stays.
    "CREATE TABLE spends (subject BYTEA PRIMARY KEY, spend BYTEA NOT NULL) WITH (fillfactor = 50)",
)
IN_FILE = (
    "CREATE TABLE spend_pages (page INTEGER PRIMARY KEY, subjects INTEGER NOT NULL, spends BLOB NOT NULL)",
    "CREATE TABLE spend_log (entry INTEGER PRIMARY KEY, spends BLOB NOT NULL)",
)
