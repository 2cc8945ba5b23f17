"""PostgreSQL behind a pooler, with odd settings, and unreachable in several ways."""

import contextlib
import socket
import threading
import uuid
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

from streamdp.database.postgres import ServerConnection
from streamdp.errors import StoreError, StoreUnavailableError
from streamdp.ledger.sql import transaction
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.pooler import pooled

STATE = {"a": [0.1 + 0.2, 1e-300, 1 / 3]}


def used(url: str, job: str) -> None:
    with Store(url, job, "print") as store:
        store.commit(STATE, {"row": 1}, Counts(1))


def test_a_pooler_of_transactions_is_refused_and_one_of_sessions_works(server_database: str, tmp_path: Path) -> None:
    with pooled(tmp_path, server_database, "transaction") as url:
        for job in ("a", "b"):
            with pytest.raises(StoreError, match="pool_mode = session"):
                used(url, job)
    with (
        pooled(tmp_path, server_database, "session") as url,
        Store(url, "a", "print") as a,
        Store(url, "b", "print") as b,
    ):
        for store, learned in ((a, 1), (b, 2), (a, 3)):
            store.commit(STATE, {"row": learned}, Counts(learned))
        assert Store.snapshot(url, "a").counts.learned == 3
        assert Store.snapshot(url, "b").counts.learned == 2
        with pytest.raises(StoreError, match="in use"):
            Store(url, "a", "print")


@pytest.mark.parametrize("setting", ["extra_float_digits TO -15", "extra_float_digits TO 0", "search_path TO nowhere"])
def test_settings_of_a_database_do_not_matter(server_database: str, setting: str) -> None:
    name = make_url(server_database).database
    with psycopg.connect(server_database, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET {setting}")
    for learned in (1, 2):
        with Store(server_database, "a", "print") as store:
            store.commit(STATE, {"row": learned}, Counts(learned))
    assert Store.snapshot(server_database, "a").counts.learned == 2
    assert len(Store.history(server_database, job="a")) == 2


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_of_another_encoding_is_refused(server_database: str, encoding: str) -> None:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_database, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        try:
            url = make_url(server_database).set(database=name).render_as_string(hide_password=False)
            with pytest.raises(StoreError, match=f"has the encoding {encoding}, and UTF8 is needed"):
                used(url, "ä")
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    ("change", "said", "kind"),
    [
        ({"host": "no-such-host.invalid"}, "unknown host", StoreUnavailableError),
        ({"port": 1}, "nothing listens at this host and port", StoreUnavailableError),
        ({"query": {"sslmode": "require"}}, "TLS failed: see sslmode", StoreError),
    ],
)
def test_a_failed_connection_says_why(
    server_database: str, change: dict[str, str], said: str, kind: type[StoreError]
) -> None:
    url = make_url(server_database).set(**change).render_as_string(hide_password=False)  # type: ignore[arg-type]
    with pytest.raises(kind, match=said):
        used(url, "a")


@pytest.mark.parametrize("hello", [True, False], ids=["after the hello", "before"])
def test_a_server_that_stops_within_the_tls_handshake_is_waited_for(hello: bool) -> None:
    """A worker ended while its database was restarted: the client's text of it says SSL."""

    def stops() -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                with listener.accept()[0] as connection:
                    connection.recv(8)
                    connection.sendall(b"S")
                    if hello:
                        connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=stops, daemon=True)
        thread.start()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            used(f"postgresql://me@127.0.0.1:{listener.getsockname()[1]}/db?sslmode=require", "a")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_connection_that_the_server_ended_is_opened_again_by_the_next_transaction_and_not_within_one(
    server_database: str,
) -> None:
    connection = ServerConnection(lambda: psycopg.connect(server_database), "SELECT 1")

    def end() -> None:
        pid = connection.fetch("SELECT pg_backend_pid()")[0][0]
        with psycopg.connect(server_database) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    def ended_within() -> None:
        with transaction(connection):
            end()
            with pytest.raises(psycopg.Error):
                connection.fetch("SELECT 1")
            with transaction(connection):
                connection.fetch("SELECT 1")

    with contextlib.closing(connection):
        with pytest.raises(psycopg.Error, match="closed"):
            ended_within()
        with transaction(connection):
            assert connection.fetch("SELECT 1") == [(1,)]
