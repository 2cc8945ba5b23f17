"""The database that a path or a URL names."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from streamdp.database.interface import Database
from streamdp.database.sqlite import SQLiteFile
from streamdp.errors import ConfigError, StoreError, check_path, needs

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_SQLITE = "sqlite:///"
_SEVERAL_HOSTS = re.compile(r"^(postgresql[^:]*://(?:[^/@]*@)?)([^/@]*,[^/@]*)(/[^?]*)\??")
"""User, hosts and database of a URL with several hosts."""


def open_database(url_or_path: str | os.PathLike[str], job: str | None) -> Database:
    """Return a database, for one of its jobs or as a whole. Nothing is read, written or connected yet.

    `url_or_path` is a file path, `sqlite:///PATH` with the path as it is, or `postgresql://HOST/DATABASE`. Several
    hosts, such as a primary and its standby, are written as for PostgreSQL's own clients:
    `postgresql://USER@A:5432,B:5432/DATABASE`, or `host=A:5432,B:5432` among the parameters. The parameter `schema`
    names the schema of a PostgreSQL database that has the tables; by default `streamdp`. Without a job, the database is
    used as a whole. Raises `StoreError` for any other text, without quoting it: a URL may contain a password.
    """
    place = check_path("store", url_or_path)
    if place.startswith("postgres://"):  # as hosts of databases write it
        place = place.replace("postgres", "postgresql", 1)
    path = place.removeprefix(_SQLITE)
    if "://" not in path and path:  # a file's name may have every character that is special in a URL
        return SQLiteFile(path, job)
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise ConfigError(needs("a PostgreSQL store", "postgres")) from None
    try:
        url = _with_hosts(make_url(_SEVERAL_HOSTS.sub(r"\1\3?host=\2&", place)))
        if "@" in (url.host or ""):
            raise ValueError("a part of the password")
    except (ArgumentError, ValueError):  # the error may contain the password; ValueError is for a port
        raise StoreError("expected a file path, sqlite:///PATH or postgresql://..., got a malformed URL") from None
    kind = url.get_backend_name()
    if kind != "postgresql" or not url.database:
        raise StoreError(f"expected a file path, sqlite:///PATH or postgresql://HOST/DATABASE, got {kind}")
    from streamdp.database.postgres import PostgresNamespace  # here, because few jobs need it

    return PostgresNamespace(url, job)


def _with_hosts(url: URL) -> URL:
    """The URL with one parameter for each of several hosts, as SQLAlchemy wants them."""
    hosts = url.query.get("host")
    if "port" in url.query or not isinstance(hosts, str):
        return url
    return url.update_query_dict({"host": hosts.split(",")})
