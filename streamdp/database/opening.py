"""The database that a path or a URL names."""

from __future__ import annotations

import os

from streamdp.database.interface import Database
from streamdp.database.sqlite import SQLiteFile
from streamdp.errors import StoreError


def open_database(url_or_path: str | os.PathLike[str], job: str | None) -> Database:
    """Return the database of a job. Nothing is read, written or connected yet.

    Parameters
    ----------
    url_or_path
        A file path, `sqlite:///PATH` or `postgresql://HOST/DATABASE`.
    job
        The name of the job. PostgreSQL needs it, because one database may hold many jobs.

    Raises `StoreError` for any other text, without quoting it: a URL may contain a password.
    """
    place = os.fspath(url_or_path)
    if "://" not in place:
        return SQLiteFile(place)
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(place)
    except (ArgumentError, ValueError):  # the error may contain the password; ValueError is for a port
        raise StoreError("expected a file path, sqlite:///PATH or postgresql://..., got a malformed URL") from None
    kind = url.get_backend_name()
    if kind == "sqlite" and url.database:
        return SQLiteFile(url.database)
    if kind != "postgresql" or not url.database:
        raise StoreError(f"expected a file path, sqlite:///PATH or postgresql://HOST/DATABASE, got {kind}")
    if job is None:
        raise StoreError("a PostgreSQL database may hold many jobs; name one with --job")
    from streamdp.database.postgres import PostgresNamespace  # here, because few jobs need it

    return PostgresNamespace(url, job)
