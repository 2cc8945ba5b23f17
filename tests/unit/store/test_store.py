"""The store commits all or nothing, survives SIGKILL, and refuses other databases without changing them."""

import contextlib
import gc
import hashlib
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sqlalchemy.engine import make_url

from servers.postgres import Postgres
from streamdp.data.records import WHOLE, Shard
from streamdp.database.file_lock import FileLock
from streamdp.database.last_commit import LastCommitFile
from streamdp.database.sqlite import SQLiteFile
from streamdp.errors import (
    ConfigError,
    StoreDamagedError,
    StoreError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreVersionError,
    listed,
)
from streamdp.ledger.subject_key import ENVIRONMENT
from streamdp.privacy.guarantees import PureDP
from streamdp.store import store as store_module
from streamdp.store.sinks import note_doubt
from streamdp.store.snapshot import Counts, Part
from streamdp.store.state_codec import StoredState, decode_state, encode_state
from streamdp.store.store import Store
from tests.support.busy import refused_as_busy
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

CAP = PureDP(1)
STATE: dict[str, Any] = {"theta": np.array([0.1, -0.0, 5e-324, 1e308]), "n_seen": 3, "inner": {"names": ["a", "b"]}}


on_a_server = pytest.mark.parametrize("place", [pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store."""
    return tmp_path / "job.db"


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A server that a test may kill and start again."""
    with Postgres(tmp_path_factory.mktemp("fragile")) as server:
        yield server


def make(path: Path | str, commits: int = 1, **options: Any) -> None:
    with Store(path, "trips", "print", cap=CAP, config="job: trips", **options) as store:
        for i in range(commits):
            store.ledger.admit_many([f"subject-{i}", "everyone"], PureDP(0.5))
            store.commit(STATE, {"row": i + 1}, Counts(i + 1, 0, 0))


def digest(place: Path | str) -> str:
    """A hash of the file, or of all rows of the server's tables."""
    if not str(place).startswith("postgresql"):
        return hashlib.sha256(Path(place).read_bytes()).hexdigest()
    said = []
    with psycopg.connect(str(place)) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'streamdp%' ORDER BY 1, 2"
        ).fetchall()
        for schema, table in tables:
            said.append((schema, table, connection.execute(f'SELECT t::text FROM "{schema}"."{table}" t').fetchall()))
    return hashlib.sha256(repr(said).encode()).hexdigest()


def refuses(
    path: Path | str, kind: type[StoreError], job: str = "trips", fingerprint: str = "print", **options: Any
) -> None:
    """Opening raises, and every byte of the main file, or every row of the tables, stays unchanged."""
    before = digest(path)
    with pytest.raises(kind) as caught:
        Store(path, job, fingerprint, **({"cap": CAP} | options))
    assert type(caught.value) is kind
    assert digest(path) == before


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, Mapping):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(equal, one, two))
    return type(one) is type(two) and (one == two or (one != one and two != two))


@pytest.mark.parametrize("name", ["a b.db", "100%41.db", "a?b=c.db", "a#b.db", "é.db"])
def test_a_file_and_its_url_name_the_same_store(tmp_path: Path, name: str) -> None:
    with Store(tmp_path / name, "trips", "print") as store:
        store.commit({}, {}, Counts(1, 0, 0))
    assert Store.snapshot(f"sqlite:///{tmp_path}/{name}", "trips").seq == 1
    assert {file.name for file in tmp_path.iterdir() if file.suffix == ".db"} == {name}


def test_what_is_committed_is_loaded(place: str) -> None:
    with Store(place, "trips", "print") as store:
        assert store.load() is None
        assert store.ledger is None
        before = time.time()
        store.commit(STATE, {"row": 7, "file": "ü"}, Counts(5, 1, 2))
        snapshot = store.load()
        assert equal(snapshot.state, STATE)
        assert snapshot.position == {"row": 7, "file": "ü"}
        assert (snapshot.counts, snapshot.seq) == (Counts(5, 1, 2), 1)
        assert before <= snapshot.committed_at <= time.time()
        assert equal(Store.snapshot(place, "trips").state, STATE)  # readers need no lock
    with Store(place if "://" in place else f"sqlite:///{place}", "trips", "print", config="new text") as store:
        store.commit({}, {}, Counts(6, 1, 2))
    final = Store.snapshot(place, "trips")
    assert (final.seq, final.config, final.job, final.fingerprint) == (2, "new text", "trips", "print")
    assert (final.shard, final.epoch) == (WHOLE, 2)
    assert [commit.counts.learned for commit in Store.history(place, job="trips")] == [5, 6]
    if "://" not in place:
        assert Path(place).stat().st_mode & 0o777 == 0o600


@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    number=st.floats(),
    text=st.text(),
    other=st.sampled_from([None, True, 2**63 - 1, 2**70]),
)
def test_states_round_trip_bit_for_bit(array: np.ndarray, number: float, text: str, other: Any) -> None:
    state = {"array": array, "reversed": array.T, "number": number, text: [text, other, True, {"deep": array}]}
    state.pop("__array__", None)
    assert equal(decode_state(encode_state(state)), state)


def test_a_stored_state_is_decoded_when_it_is_read() -> None:
    text = encode_state(STATE)
    stored = StoredState(text)
    assert encode_state(stored) is text
    assert equal(stored, STATE)
    assert stored["theta"] is stored["theta"]
    damaged = StoredState("{")
    with pytest.raises(ValueError, match="Expecting"):
        len(damaged)


def test_states_of_anything_else_are_refused_before_writing(place: str) -> None:
    with Store(place, "trips", "print") as store:
        for value in (object(), b"bytes", np.array(["text"]), np.zeros(2, np.float16), {1: 2}, {"__array__": "<f8"}):
            with pytest.raises(StoreError, match=r"state\['bad'\]"):
                store.commit({"bad": value}, {}, Counts())
        with pytest.raises(StoreError, match="position"):
            store.commit({}, {"row": object()}, Counts())
        assert store.load() is None


def test_spends_are_committed_with_the_state_or_not_at_all(place: str) -> None:
    make(place)
    with Store(place, "trips", "print", cap=CAP) as store:
        assert store.ledger.admit("everyone", PureDP(0.5))
    with Store(place, "trips", "print", cap=CAP) as store:  # closed without a commit: not spent
        assert store.ledger.spent("everyone").epsilon == 0.5
        assert store.ledger.n_subjects == 2
    with pytest.raises(StoreError, match="closed"):
        store.ledger.admit("nobody yet", PureDP(0.5))


def test_a_full_disk_keeps_the_last_snapshot_and_the_commit_can_be_repeated(path: Path) -> None:
    make(path)
    big = {"theta": np.random.default_rng(0).normal(size=50_000)}
    with Store(path, "trips", "print", cap=CAP) as store:
        store.ledger.admit("late", PureDP(0.5))
        driver: Any = store._connection.driver
        (pages,) = driver.execute("PRAGMA page_count").fetchone()
        driver.execute(f"PRAGMA max_page_count = {pages}")
        number = LastCommitFile(str(path)).read()
        with pytest.raises(StoreError, match="full"):
            store.commit(big, {"row": 2}, Counts(2))
        kept = Store.snapshot(path)
        assert equal(kept.state, STATE)
        assert LastCommitFile(str(path)).read() == number
        driver.execute("PRAGMA max_page_count = 100000")
        store.commit(big, {"row": 2}, Counts(2))
        loaded = store.load()
        assert loaded.seq == 2
    with Store(path, "trips", "print", cap=CAP) as store:
        assert store.ledger.spent("late").records == 1


def test_another_configuration_is_taken_if_nothing_was_learned(place: str) -> None:
    with Store(place, "trips", "old", cap=CAP, config="old") as store:
        store.commit(STATE, {"row": 5}, Counts(0, 0, 5))
        store.commit(STATE, {"row": 9}, Counts(0, 0, 9))
        epoch = Store.snapshot(place, "trips").epoch
    with pytest.raises(StoreMismatchError):
        Store(place, "trips", "new", cap=CAP, shared=True)  # another worker may hold the old one
    with Store(place, "trips", "new", cap=CAP, config="new") as store:
        assert store.load() is None
        assert Store.snapshot(place, "trips") is None
        assert not Store.history(place, job="trips")
        store.commit({}, {"row": 1}, Counts(1, 0, 0))
        snapshot = Store.snapshot(place, "trips")
        assert (snapshot.fingerprint, snapshot.config, snapshot.seq) == ("new", "new", 1)
        assert snapshot.epoch > epoch
    refuses(place, StoreMismatchError, fingerprint="old")


@pytest.mark.parametrize("counts", [Counts(1, 0, 0), Counts(0, 1, 0)])
def test_another_configuration_is_refused_if_anything_was_learned_or_refused(path: Path, counts: Counts) -> None:
    with Store(path, "trips", "old", cap=CAP) as store:
        store.commit(STATE, {}, counts)
    refuses(path, StoreMismatchError, fingerprint="new")


def test_workers_that_begin_otherwise_at_the_same_time_are_told_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one wrote its configuration over that of the first, whose commits then failed their checksums."""
    check, shard = store_module.create_or_check, Shard("t", 0)

    def raced(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(store_module, "create_or_check", check)
        checked = check(*given, **more)
        one = held.enter_context(Store(path, "trips", "1", shared=True))
        one.claim([shard])
        first.append(one)
        return checked

    first: list[Store] = []
    with contextlib.ExitStack() as held:
        monkeypatch.setattr(store_module, "create_or_check", raced)
        with pytest.raises(StoreUnavailableError, match="another worker has just begun job 'trips' otherwise"):
            Store(path, "trips", "2", shared=True)
        with pytest.raises(StoreMismatchError):  # as it is said when it tries again
            Store(path, "trips", "2", shared=True)
        first[0].commit_parts({shard: Part(STATE, {"offset": 1}, Counts(learned=1))})
        assert [snapshot.counts.learned for snapshot in Store.snapshots(path)] == [1]


def test_a_doubt_that_another_worker_notes_meanwhile_is_no_other_job(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = store_module.create_or_check

    def noted(*given: Any, **more: Any) -> Any:
        checked = check(*given, **more)
        note_doubt(path, "trips", "worse than a constant")
        return checked

    with Store(path, "trips", "1", shared=True):
        monkeypatch.setattr(store_module, "create_or_check", noted)
        Store(path, "trips", "1", shared=True).close()


def test_other_fingerprints_caps_and_keys_are_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(place)
    refuses(place, StoreMismatchError, fingerprint="other")
    refuses(place, StoreMismatchError, cap=None)
    refuses(place, StoreMismatchError, key=bytes(32))
    with monkeypatch.context() as patch:
        patch.setenv(ENVIRONMENT, "0" * 63)
        before = digest(place)
        with pytest.raises(ConfigError, match=ENVIRONMENT):
            Store(place, "trips", "print", cap=CAP)
        assert digest(place) == before
        patch.delenv(ENVIRONMENT)
        if "://" not in place:
            Path(place + ".key").rename(place + ".elsewhere")
            refuses(place, StoreMismatchError)
            assert not Path(place + ".key").exists()
        else:
            with pytest.raises(ConfigError, match=ENVIRONMENT):
                Store(place, "trips", "print", cap=CAP)
    if "://" not in place:
        Path(place + ".elsewhere").rename(place + ".key")
    with Store(place, "trips", "print", cap=CAP) as store:
        assert store.load() is not None


def test_a_cap_cannot_be_added_later(place: str) -> None:
    Store(place, "trips", "print").close()
    refuses(place, StoreMismatchError)


def test_a_file_names_no_subject(path: Path) -> None:
    make(path)
    assert b"subject-0" not in path.read_bytes()


@pytest.mark.parametrize(
    "url",
    ["mysql://host/database", "postgresql://host", "sqlite://", "://", "postgresql://host:port/database",
        "postgresql://me:p@hush@host/database", "postgresql://me:p@hush@host,other/database"],
)  # fmt: skip
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store(url, "trips", "print")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("version", [0, 2, 6])
def test_other_formats_are_refused_even_from_the_log(path: Path, version: int) -> None:
    make(path)
    other = sqlite3.connect(path)
    other.execute(f"PRAGMA user_version = {version}")  # in the write-ahead log while this connection is open
    assert digest(path)
    refuses(path, StoreVersionError)
    other.close()
    refuses(path, StoreVersionError)
    with pytest.raises(StoreVersionError):
        Store.snapshot(path)


def test_jobs_of_one_database_have_their_own_states(place: str) -> None:
    make(place)
    before = digest(place)
    for absent in ("other", "Trips", 'trips"; DROP SCHEMA streamdp'):
        with pytest.raises(StoreMismatchError, match="holds 'trips', and not"):
            Store.snapshot(place, absent)
    assert Store.snapshot(place).job == "trips"
    assert digest(place) == before
    names = ["other", "Trips", 'a"b.c ü%s :x', "ü" * 40]
    for n, name in enumerate(names):
        with Store(place, name, name, cap=CAP) as store, Store(place, "trips", "print", cap=CAP) as first:
            assert [f" {listed(['trips', *names[:n]])}: " in note for note in store.notes] == [True]
            assert first.notes == []
            assert store.ledger.spent("everyone").records == 1
            store.commit({}, {"of": name}, Counts())
    assert [Store.snapshot(place, name).position for name in names] == [{"of": name} for name in names]
    assert [commit.position for commit in Store.history(place, job="other")] == [{"of": "other"}]
    assert Store.snapshot(place, "trips").position == {"row": 1}
    with pytest.raises(StoreError, match="--job"):
        Store.snapshot(place)


@on_a_server
@pytest.mark.slow
def test_schemas_of_one_server_do_not_meet(place: str) -> None:
    make(place)
    other = place + "?schema=people%20of%20%22b%22"
    make(other, key=bytes(32))
    with Store(other, "trips", "print", cap=CAP, key=bytes(32)) as store:
        assert store.ledger.spent("everyone").records == 1
    with pytest.raises(ConfigError, match="1 to 63 bytes"):
        Store(f"{place}?schema={'ü' * 32}", "trips", "print")


@on_a_server
def test_a_cap_on_a_server_needs_a_key_from_the_environment(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT)
    with pytest.raises(ConfigError, match=ENVIRONMENT):
        Store(place, "trips", "print", cap=CAP)
    with pytest.raises(StoreError, match="no such schema"):  # nothing was created
        Store.snapshot(place, "trips")
    make(place, key=bytes(32))


@on_a_server
@pytest.mark.slow
def test_a_server_with_another_format_or_another_content_is_refused(place: str) -> None:
    make(place)
    for change, kind in (
        ("UPDATE format SET version = 7", StoreVersionError),
        ("UPDATE format SET version = 1, name = 'other'", StoreDamagedError),
        ("UPDATE format SET name = 'store'; UPDATE shards SET learned = 9", StoreDamagedError),
        ("UPDATE shards SET learned = 1; UPDATE shards SET state = '{}'", StoreDamagedError),
        ("DROP TABLE shards", StoreDamagedError),
    ):
        with psycopg.connect(place) as connection:
            connection.execute(f"SET search_path TO streamdp; {change}")
        refuses(place, kind)
        with pytest.raises(kind):
            Store.snapshot(place, "trips")


def test_a_database_whose_first_job_begins_has_no_snapshots(place: Path | str) -> None:
    """Its tables are made in a transaction of their own, and a reader may come before the job."""
    with Store(place, "trips", "print", cap=CAP):
        pass
    if not str(place).startswith("postgresql"):
        with contextlib.closing(sqlite3.connect(place)) as connection, connection:
            connection.execute("DELETE FROM jobs")
    else:
        with psycopg.connect(str(place)) as connection:
            connection.execute("DELETE FROM streamdp.jobs")
    assert Store.snapshots(place) == []
    with pytest.raises(StoreMismatchError, match="no job"):
        Store.snapshots(place, "trips")


@on_a_server
@pytest.mark.parametrize(
    "form",
    ["postgresql://{u}@{a},{b}/{d}", "postgresql://{u}@/{d}?host={a},{b}", "postgresql://{u}@/{d}?host={a}&host={b}"],
)
@pytest.mark.slow
def test_a_server_with_several_hosts_is_used_at_the_one_that_can_be_written(place: str, form: str) -> None:
    url = make_url(place)
    hosts = {"a": "127.0.0.1:1", "b": f"127.0.0.1:{url.port or 5432}"}
    several = form.format(u=url.username, d=url.database, **hosts)
    make(several)
    assert [snapshot.position for snapshot in Store.snapshots(several, "trips")] == [{"row": 1}]
    with Store(several, "trips", "print", cap=CAP) as store:
        assert store._database.name == f"{hosts['a']},{hosts['b']}/{url.database} (streamdp)"
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{url.database}" SET default_transaction_read_only TO on')
    with pytest.raises(StoreUnavailableError):  # as a standby
        Store(several, "trips", "print", cap=CAP)


@on_a_server
def test_a_password_is_in_no_error_and_not_in_the_store(place: str) -> None:
    """The server accepts any password, so these are errors of other kinds. A password with an @ is parsed wrongly."""
    url = make_url(place)
    ours = url.set(password="hush").render_as_string(hide_password=False)
    wrong = [
        url.set(password="hush", database="absent").render_as_string(hide_password=False),
        url.set(password="hush", username="nobody").render_as_string(hide_password=False),
        url.set(password="hush", port=1).render_as_string(hide_password=False),
        url.set(password="hush", query={"wrong": "1"}).render_as_string(hide_password=False),
        f"postgresql://me:p@ss:hush@{url.host}/{url.database}",
        "mysql://me:hush@host/database",
    ]
    said, written = [], uuid.uuid4().hex
    for one in wrong:
        with pytest.raises(StoreError) as caught:
            Store(one, "trips", "print")
        said += traceback.format_exception(caught.value)
    assert '(database "absent" does not exist)' in "".join(said)
    assert '(role "nobody" does not exist)' in "".join(said)
    with Store(ours, "trips", "print", cap=CAP, config="text", key=b"k" * 32) as store:
        said += [repr(store), repr(vars(store)), repr(vars(store._database)), store._database.name]
        store.commit(STATE, {}, Counts())
        with refused_as_busy() as busy:
            Store(ours, "trips", "print", cap=CAP, key=b"k" * 32)
        said += traceback.format_exception(busy.value)
        with psycopg.connect(place) as connection:
            connection.execute("DROP TABLE streamdp.commits")
        with pytest.raises(StoreDamagedError) as damaged:
            store.commit({}, {"at": written}, Counts())
        said += traceback.format_exception(damaged.value)
    assert "hush" not in "".join(said)
    assert written not in "".join(said)  # nor the values of the failed commit
    with psycopg.connect(place) as connection:
        for table in ("jobs", "shards", "spends"):
            rows = connection.execute(f"SELECT t::text FROM streamdp.{table} t").fetchall()
            assert "hush" not in repr(rows)


@on_a_server
def test_opening_waits_for_a_lock_that_the_server_is_about_to_release(place: str) -> None:
    """As after a holder that was killed: its session ends a moment later."""
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    name = "hashtextextended('streamdp/trips', 0)"

    def free() -> None:
        while watcher.execute(waits).fetchone() == (0,):
            pass
        holder.execute(f"SELECT pg_advisory_unlock({name})")

    with psycopg.connect(place, autocommit=True) as holder, psycopg.connect(place, autocommit=True) as watcher:
        holder.execute(f"SELECT pg_advisory_lock({name})")
        thread = threading.Thread(target=free)
        thread.start()
        Store(place, "trips", "print").close()
        thread.join()


@on_a_server
def test_one_server_by_two_names_has_one_lock(place: str) -> None:
    url = make_url(place)
    if url.host != "127.0.0.1":
        pytest.skip("this server has a name that we know no other for")
    other = url.set(host="localhost").render_as_string(hide_password=False)
    with Store(place, "trips", "print"), refused_as_busy():
        Store(other, "trips", "print")


def commit_once(place: str, store: Store, part: Part) -> None:
    """Repeat the commit until it succeeds, as its docstring allows; then it is there once, with its spends."""
    deadline = time.monotonic() + 120
    while True:
        try:
            store.commit_parts({WHOLE: part})
            break
        except StoreUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert [(c.seq, c.position) for c in Store.history(place, job="trips")] == [(1, {"row": 1}), (2, {"row": 2})]
    snapshot = store.load()
    assert snapshot.counts == part.counts
    assert store.ledger.spent("late").records == 1
    assert store.ledger.n_subjects == 3


@on_a_server
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.slow
def test_a_commit_whose_answer_was_lost_happens_once(place: str, when: str) -> None:
    make(place)
    url = make_url(place)
    with (
        Proxy(url.port or 5432) as wire,
        Store(url.set(port=wire.port).render_as_string(hide_password=False), "trips", "print", cap=CAP) as store,
    ):
        store.ledger.admit("late", PureDP(0.5))
        part = Part({}, {"row": 2}, Counts(2))
        wire.cut_at(b"UPDATE shards" if when == "before" else b"COMMIT", forward=True)
        with pytest.raises(StoreUnavailableError):
            store.commit_parts({WHOLE: part})
        if when == "after":  # the server may need a moment for what it was sent
            wait_until(lambda: Store.snapshot(place, "trips").seq == 2)
        assert Store.snapshot(place, "trips").seq == (1 if when == "before" else 2)
        commit_once(place, store, part)
        store.commit({}, {"row": 3}, Counts(3))


@pytest.mark.slow
def test_a_connection_that_is_refused_is_an_error_at_once(fragile: Postgres) -> None:
    """A retry would be refused again, so it is no `StoreUnavailableError`."""
    with psycopg.connect(fragile.url, autocommit=True) as admin:
        (rules,) = admin.execute("SHOW hba_file").fetchone() or ()
        admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        before = Path(rules).read_text()
        Path(rules).write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
        admin.execute("SELECT pg_reload_conf()")
    url = make_url(fragile.url)
    try:
        for change, said in (
            ({"username": "guarded", "password": "hush"}, "password authentication failed"),
            ({"username": "guarded"}, "no password supplied|no connection"),
            ({"username": "nobody"}, "does not exist"),
            ({"database": "absent"}, "does not exist"),
        ):
            with pytest.raises(StoreError, match=said) as caught:
                Store(url.set(**change).render_as_string(hide_password=False), "trips", "print", key=b"k" * 32)
            assert not isinstance(caught.value, StoreUnavailableError)
            assert "see user, password, database and TLS" in str(caught.value)
            assert "hush" not in "".join(traceback.format_exception(caught.value))
    finally:
        Path(rules).write_text(before)


@pytest.mark.parametrize("when", ["idle", "writing"])
@pytest.mark.slow
def test_a_server_that_was_killed_loses_no_commit(
    fragile: Postgres, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "5a" * 32)
    with psycopg.connect(fragile.url, autocommit=True) as admin:
        admin.execute("DROP SCHEMA IF EXISTS streamdp CASCADE")
    make(fragile.url)
    with Store(fragile.url, "trips", "print", cap=CAP) as store:
        store.ledger.admit("late", PureDP(0.5))
        part = Part({}, {"row": 2}, Counts(2))
        if when == "idle":
            fragile.kill()
        else:
            write = store.ledger.write_pending
            monkeypatch.setattr(store.ledger, "write_pending", lambda *c: (write(*c), fragile.kill()))
        with pytest.raises(StoreUnavailableError):
            store.commit_parts({WHOLE: part})
        with pytest.raises(StoreUnavailableError):
            store.commit_parts({WHOLE: part})
        with pytest.raises(StoreUnavailableError):
            store.load()
        with pytest.raises(StoreUnavailableError):
            store.ledger.admit("nobody yet", PureDP(0.5))
        with pytest.raises(StoreUnavailableError):
            Store.snapshot(fragile.url, "trips")
        if when == "writing":
            monkeypatch.setattr(store.ledger, "write_pending", write)
        fragile.start()
        commit_once(fragile.url, store, part)


@pytest.mark.parametrize("column", ["learned", "dead", "seq", "committed_at", "position"])
def test_a_changed_row_of_the_history_is_recognised(path: Path, column: str) -> None:
    make(path, commits=3)
    assert len(Store.history(path)) == 3
    with contextlib.closing(sqlite3.connect(path)) as other:
        changed = "replace(position, '2', '1')" if column == "position" else f"{column} + 7"
        other.execute(f"UPDATE commits SET {column} = {changed} WHERE seq = 2")
        other.commit()
    with pytest.raises(StoreDamagedError, match="a row of the history"):
        Store.history(path)
    assert Store.snapshot(path) is not None


def test_files_that_are_no_store_are_refused(path: Path, tmp_path: Path) -> None:
    for content in (b"x", b"SQLite format 3\0", random.Random(1).randbytes(5000)):
        path.write_bytes(content)
        refuses(path, StoreDamagedError)
    path.unlink()
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE mine (x)")
    foreign.close()
    refuses(path, StoreDamagedError)
    with pytest.raises(StoreError):
        Store.snapshot(tmp_path / "absent.db")
    assert not (tmp_path / "absent.db").exists()
    with pytest.raises(StoreError):
        Store(tmp_path / "no" / "directory.db", "trips", "print")


def test_an_empty_file_was_cut_and_a_log_without_its_database_is_damage(path: Path, tmp_path: Path) -> None:
    """If either were treated as a new store, every subject would get its whole cap again."""
    make(path)
    os.truncate(path, 0)
    refuses(path, StoreDamagedError)
    with pytest.raises(StoreDamagedError, match="is empty: restore the newest copy"):
        Store.snapshot(path)
    path.unlink()
    (tmp_path / "job.db-wal").write_bytes(b"frames")
    with pytest.raises(StoreDamagedError):
        make(path)


def test_a_damaged_snapshot_fails_its_checksum(path: Path, tmp_path: Path) -> None:
    for change in ("learned = 9", "position = '{}'", "state = '{}'", "state = x'00ff'", "committed_at = 'then'"):
        for file in tmp_path.iterdir():
            file.unlink()
        make(path)
        other = sqlite3.connect(path)
        other.execute(f"UPDATE shards SET {change}")
        other.commit()
        other.close()
        refuses(path, StoreDamagedError)
        with pytest.raises(StoreDamagedError):
            Store.snapshot(path)


@pytest.mark.slow
def test_two_stores_in_one_process_are_refused_and_a_dropped_one_lets_go(place: str) -> None:
    store = Store(place, "trips", "print")
    with refused_as_busy():
        Store(place, "trips", "print")
    store.close()
    store.close()
    dropped = Store(place, "trips", "print")
    del dropped
    gc.collect()
    Store(place, "trips", "print").close()


def test_a_crash_while_creating_leaves_nothing_in_the_way(path: Path, tmp_path: Path) -> None:
    (tmp_path / "job.db.new").write_bytes(b"half a database")
    (tmp_path / "job.db.new-journal").write_bytes(b"half a journal")
    make(path)
    left = {file.name for file in tmp_path.iterdir()}
    (of_the_job,) = left - {"job.db", "job.db.first.lock", "job.db.key", "job.db.last", "job.db.lock"}
    assert of_the_job.endswith(".lock")


def _fail(path: Path, job: str = "trips", cap: PureDP | None = CAP, within: Any = lambda store: None) -> None:
    with contextlib.suppress(ZeroDivisionError), Store(path, job, "1", cap=cap) as store:
        within(store)
        raise ZeroDivisionError


def _left(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir() if not file.name.endswith(".lock")}


def test_an_error_leaves_no_store_that_has_nothing(path: Path) -> None:
    _fail(path)
    assert _left(path) == set()
    _fail(path, cap=None)  # another configuration, which an empty store would have refused
    assert _left(path) == set()
    Store(path, "trips", "1", cap=CAP).close()
    _fail(path)  # made by another one
    assert _left(path) == {"job.db", "job.db.key", "job.db.last"}


@pytest.mark.parametrize("what", ["commit", "own cap", "other job", "other process"])
def test_an_error_leaves_a_store_that_has_something_or_is_used(path: Path, what: str) -> None:
    def begin(store: Store) -> None:
        if what == "commit":
            store.commit(STATE, {"row": 1}, Counts(dead_letters=1))
        elif what == "own cap":
            store.set_caps({"ann": PureDP(0.5)})
        elif what == "other job":
            with Store(path, "other", "1", cap=CAP) as other:
                other.commit(STATE, {"row": 1}, Counts(learned=1))
        else:
            held.enter_context(Store(path, "other", "1", cap=CAP))

    with contextlib.ExitStack() as held:
        _fail(path, within=begin)
        assert _left(path) >= {"job.db", "job.db.key", "job.db.last"}
    Store(path, "trips", "1", cap=CAP).close()


def test_two_that_saw_a_file_which_was_removed_do_not_both_make_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their locks are shared, because it was there when they took them."""
    other = FileLock(str(path), shared=True)
    with monkeypatch.context() as patch:
        looks = iter([False])
        is_new = SQLiteFile._is_new
        patch.setattr(SQLiteFile, "_is_new", lambda file: next(looks, None) is None and is_new(file))
        with pytest.raises(StoreUnavailableError, match="another process begins"):
            Store(path, "trips", "1", shared=True)
    other.release()
    Store(path, "trips", "1", shared=True).close()


def test_an_error_forgets_no_accepted_loss(path: Path) -> None:
    with Store(path, "trips", "1", cap=CAP) as store:
        store.commit(STATE, {"row": 1}, Counts(learned=1))
    path.unlink()
    with contextlib.suppress(ZeroDivisionError), Store(path, "trips", "1", cap=CAP, accept_loss=True):
        raise ZeroDivisionError
    with Store(path, "trips", "1", cap=CAP) as store:
        assert store.losses == 1


def test_a_crash_while_removing_leaves_nothing_in_the_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, unlink, replace = 0, os.unlink, os.replace

    def dying(change: Any, steps: int) -> Any:
        def changed(*given: Any, **more: Any) -> None:
            nonlocal made
            if made == steps:
                raise KeyboardInterrupt
            made += 1
            change(*given, **more)

        return changed

    for steps in range(10):
        made = 0
        store = Store(path, "trips", "1", cap=CAP)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(os, "unlink", dying(unlink, steps))
            patch.setattr(os, "replace", dying(replace, steps))
            store.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        if made < steps:
            break
        with Store(path, "trips", "1", cap=CAP) as again:  # it is whole, or begins anew
            assert again.load() is None
        with contextlib.suppress(FileNotFoundError):
            for name in _left(path):
                path.with_name(name).unlink()
    assert steps > 3
    assert _left(path) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="the byte range of SQLite's locks on POSIX systems")
def test_reading_a_store_keeps_the_locks_of_the_connection_that_writes(tmp_path: Path) -> None:
    """POSIX drops a process's locks on a file when it closes any descriptor of it: SQLite alone may open the file.

    Otherwise another process that closes the store takes itself for the last one and removes the write-ahead log.
    """
    path = tmp_path / "s.db"
    ask = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'rb+') as file:\n"
        "    try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)\n"
        "    except OSError: print('locked')\n"
    )
    with Store(path, "job", "digest"):
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", ask, path], capture_output=True, text=True, check=True)
            assert done.stdout == "locked\n"
            Store.snapshot(path)


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    """Each name has a lock of its own, and SQLite would keep two write-ahead logs."""
    path, other = tmp_path / "job.db", tmp_path / "other.db"
    make(path)
    os.link(path, other)
    for name in (path, other):
        with pytest.raises(StoreError, match="hard link"):
            make(name)
    other.unlink()
    make(path)
