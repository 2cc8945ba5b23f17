"""The database that a path or a URL names."""

import os
import re
from urllib.parse import quote, unquote, urlsplit

from streamdp.database.interface import Database
from streamdp.database.sqlite import SQLiteFile
from streamdp.errors import StoreError, check_path, needing

_SQLITE = "sqlite:///"
_POSTGRESQL = re.compile(r"postgres(ql)?(\+[a-z0-9]+)?://")  # postgres:// as hosts of databases write it


def open_database(url_or_path: str | os.PathLike[str], job: str | None) -> Database:
    """Return a database, for one of its jobs or as a whole. Nothing is read, written or connected yet.

    `url_or_path` is a file path, `sqlite:///PATH` with the path as it is, or `postgresql://HOST/DATABASE`. Several
    hosts, such as a primary and its standby, are written as for PostgreSQL's own clients:
    `postgresql://USER@A:5432,B:5432/DATABASE`, or `host=A:5432,B:5432` among the parameters. The parameter `schema`
    names the schema of a PostgreSQL database that has the tables; by default `streamdp`. Without a job, the database is
    used as a whole. Raises `StoreError` for any other text, without quoting it: a URL may contain a password.
    """
    place = check_path("store", url_or_path)
    path = place.removeprefix(_SQLITE)
    if "://" not in path and path:  # a file's name may have every character that is special in a URL
        return SQLiteFile(path, job)
    kind = place.partition("://")[0]
    if not _POSTGRESQL.match(place):
        raise StoreError(f"expected a file path, sqlite:///PATH or postgresql://HOST/DATABASE, got {kind}")
    with needing("a PostgreSQL store", "postgres"):
        from streamdp.database.postgres import PostgresNamespace  # here, because few jobs need it
    address = _address(_POSTGRESQL.sub("postgresql://", place, count=1))
    if address is None:
        raise StoreError("expected a file path, sqlite:///PATH or postgresql://HOST/DATABASE, got a malformed URL")
    return PostgresNamespace(address, job)


def _address(url: str) -> dict[str, str] | None:
    """The parameters of a connection, and `schema`; None for a URL that is malformed, which may have a password."""
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = urlsplit(url)
        given = [pair.partition("=") for pair in parts.query.split("&")]
        values = [(name, unquote(value)) for name, _, value in given]
        rest = "&".join("".join(pair) for pair in given if pair[0] not in ("schema", "host"))
        user, at, hosts = parts.netloc.rpartition("@")
        hosts = ",".join(quote(value, safe=":,") for name, value in values if name == "host") or hosts
        address = conninfo_to_dict(parts._replace(netloc=f"{user}{at}{hosts}", query=rest).geturl())
    except (Error, ValueError):
        return None
    found = {name: str(value) for name, value in address.items()} | dict(one for one in values if one[0] == "schema")
    numbers = found.get("port", "0").replace(",", "0")
    return None if "@" in found.get("host", "") or not found.get("dbname") or not numbers.isdigit() else found
