"""Several services of one job on PostgreSQL: one learns, the others stand by and take over."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg

from streamdp.config.job import JobConfig
from streamdp.store.store import Store
from tests.support.service import client, job, record

PATIENCE_S = 120.0


def learn(http: httpx.Client, key: str, *records: dict[str, Any]) -> httpx.Response:
    return http.post("/v1/models/late/learn", json={"records": list(records)}, headers={"Idempotency-Key": key})


def learned_at_last(http: httpx.Client, key: str, *records: dict[str, Any]) -> Any:
    """The answer of a service that takes over."""
    deadline = time.monotonic() + PATIENCE_S
    while (response := learn(http, key, *records)).status_code == 503:
        assert time.monotonic() < deadline, response.text
        time.sleep(0.05)
    return response.json()


def shows(http: httpx.Client, learned: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while http.get("/v1/models/late").json()["learned"] != learned:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def learning(http: httpx.Client) -> str:
    return http.get("/metrics").text.partition('streamdp_learning{job="late"} ')[2][:3]


class Replica:
    """A service that a test stops when it wants to."""

    def __init__(self, config: JobConfig, within: ExitStack) -> None:
        self._stack = within.enter_context(ExitStack())
        self.http = self._stack.enter_context(client(config))

    def stop(self) -> None:
        self._stack.close()


def test_a_standby_shows_what_is_committed_and_takes_over_with_all_answers(server_database: str) -> None:
    config = job(Path(), store=server_database, cap="eps=2")
    with ExitStack() as stack:
        first, second = Replica(config, stack), Replica(config, stack)
        answer = learn(first.http, "k", record(1, id="a")).json()
        assert answer["learned"] == 1
        shows(second.http, 1)
        x = {"records": [{"dep_delay": 3, "origin": "JFK"}]}
        one, other = (r.http.post("/v1/models/late/predict", json=x).json() for r in (first, second))
        assert one == other
        refused = learn(second.http, "k", record(1, id="a"))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "stands by" in refused.json()["detail"]
        assert second.http.get("/readyz").status_code == 200
        assert (learning(first.http), learning(second.http)) == ("1.0", "0.0")

        first.stop()
        assert learned_at_last(second.http, "k", record(1, id="a")) == answer
        assert learn(second.http, "l", record(1, id="a")).json()["learned"] == 1  # its id is known: it counts no more
        assert learn(second.http, "m", record(2, subject="p1"), record(3, subject="p1")).json()["refused"] == 1
        assert learning(second.http) == "1.0"
        third = Replica(config, stack)
        shows(third.http, 2)
        assert learning(third.http) == "0.0"
        third.stop()  # the end of a standby changes nothing
        assert learn(second.http, "n", record(4)).json()["learned"] == 1
    (snapshot,) = Store.snapshots(server_database, "late")
    assert (snapshot.counts.learned, snapshot.counts.refused) == (3, 1)


def test_a_holder_that_lost_its_session_unnoticed_commits_nothing_and_stands_by(server_database: str) -> None:
    config = job(Path(), store=server_database)
    with ExitStack() as stack:
        first, second = Replica(config, stack), Replica(config, stack)
        assert learn(first.http, "k", record(1)).json()["learned"] == 1
        end_session_with_lock(server_database)
        assert learned_at_last(second.http, "l", record(2))["learned"] == 1
        assert learn(first.http, "m", record(3)).status_code == 503
        shows(first.http, 2)
        assert learn(second.http, "m", record(3)).json()["learned"] == 1
        assert (learning(first.http), learning(second.http)) == ("0.0", "1.0")
    (snapshot,) = Store.snapshots(server_database, "late")
    assert snapshot.counts.learned == 3


def end_session_with_lock(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        ended = admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND granted AND datname = current_database()"
        ).fetchall()
    assert ended == [(True,)]
