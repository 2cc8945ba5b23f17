"""Several services of one job on PostgreSQL: each learns a shard, all show the average, and every call counts once."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy.engine import make_url

from servers.process import free_ports
from streamdp.config.job import NOTHING, JobConfig
from streamdp.data.records import WHOLE, Shard
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import OF_A_SHARD
from streamdp.serving.publish import weights
from streamdp.serving.snapshots import combined, restore
from streamdp.store.store import Store
from tests.support.proxy import Proxy
from tests.support.service import PATIENCE_S, ServiceProcess, client, job, record
from tests.support.sizes import some
from tests.support.waiting import wait_until

ONE = {"type": "http", "shards": 1}
X = {"dep_delay": 3.0, "origin": "JFK"}
GATE = 77
"""The number of the lock at which `held` stops commits."""


def learn(http: httpx.Client, key: str, *records: dict[str, Any]) -> httpx.Response:
    return http.post("/v1/models/late/learn", json={"records": list(records)}, headers={"Idempotency-Key": key})


def learned(http: httpx.Client, key: str, *records: dict[str, Any]) -> Any:
    """The answer of a service that learns, or will after other services have ended."""
    answers: list[httpx.Response] = []

    def is_answered() -> bool:
        answers.append(learn(http, key, *records))
        return answers[-1].status_code != 503

    wait_until(is_answered, PATIENCE_S)
    assert answers[-1].status_code == 200, answers[-1].text
    return answers[-1].json()


def shows(http: httpx.Client, learned: int) -> None:
    wait_until(lambda: http.get("/v1/models/late").json()["learned"] == learned, PATIENCE_S)


def learning(http: httpx.Client) -> str:
    return http.get("/metrics").text.partition('streamdp_learning{job="late"} ')[2][:3]


class Replica:
    """A service that a test stops when it wants to."""

    def __init__(self, config: JobConfig, within: ExitStack) -> None:
        self._stack = within.enter_context(ExitStack())
        self.http = self._stack.enter_context(client(config))

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def adds(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether a service that finds no free shard adds one at once, or never."""

    def set_seconds(at_once: bool) -> None:
        monkeypatch.setattr("streamdp.service.learning_job.ADD_AFTER_S", 0.0 if at_once else float("inf"))

    set_seconds(True)
    return set_seconds


@pytest.fixture
def url(server_database: str, adds: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """A database, in which services add shards at once, and which they wait for on a busy machine."""
    monkeypatch.setattr("streamdp.service.jobs.ANSWER_S", PATIENCE_S)
    return server_database


def holders(url: str) -> list[int]:
    """The sessions that hold the store or a shard, or wait for one."""
    with psycopg.connect(url) as reader:
        rows = reader.execute(
            "SELECT DISTINCT pid FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database() AND NOT (classid = 0 AND objid = %s)",
            (GATE,),
        ).fetchall()
    return [pid for (pid,) in rows]


@contextmanager
def held(url: str, kind: str = "TRIGGER {} BEFORE") -> Iterator[Callable[[int], None]]:
    """Hold commits until the end of the block; the value waits for so many commits that are held.

    With "CONSTRAINT TRIGGER {} AFTER" they are held within COMMIT itself.
    """
    deferred = "DEFERRABLE INITIALLY DEFERRED" if "CONSTRAINT" in kind else ""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION streamdp.wait() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NEW; END $$"
        )
        admin.execute(
            f"CREATE {kind.format('gate')} UPDATE ON streamdp.shards {deferred}"
            " FOR EACH ROW WHEN (OLD.seq < NEW.seq) EXECUTE FUNCTION streamdp.wait()"
        )
        admin.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        counted = "SELECT count(*) FROM pg_locks WHERE classid = 0 AND objid = %s AND NOT granted"

        def wait_for(commits: int) -> None:
            wait_until(lambda: admin.execute(counted, (GATE,)).fetchone() == (commits,), PATIENCE_S)

        try:
            yield wait_for
        finally:
            admin.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP TRIGGER gate ON streamdp.shards; DROP FUNCTION streamdp.wait()")


def counts(url: str) -> list[tuple[Shard, int, int, int]]:
    """Of each shard: learned, refused and dead records."""
    found = Store.snapshots(url, "late")
    return [(s.shard, s.counts.learned, s.counts.refused, s.counts.dead_letters) for s in found]


def test_three_services_learn_shards_of_their_own_and_all_show_their_average(url: str) -> None:
    # With a smaller budget all records of two shards may answer about their class, and then the third one's are shown.
    config = job(Path(), store=url, model={"estimator": "LDPASGDClassifier", "budget": "eps=5"})
    with ExitStack() as stack:
        replicas = [Replica(config, stack).http for _ in range(3)]
        answers = [
            learn(http, f"k{n}", *(record(300 * n + i) for i in range(100 * (n + 1)))).json()
            for n, http in enumerate(replicas)
        ]
        assert [answer["learned"] for answer in answers] == [100, 200, 300]
        for http in replicas:
            shows(http, 600)
            assert learning(http) == "1.0"
            with http.stream("GET", "/v1/models/late/events") as stream:
                event = next(line for line in stream.iter_lines() if line.startswith("data: "))
            assert (json.loads(event[6:])["learned"], json.loads(event[6:])["version"]) == (600, 3)
            (*_, last) = http.get("/page/job/late").json()["history"]
            assert last["learned"] == 600
        shown = [http.get("/v1/models/late/weights").json() for http in replicas]
        assert shown[0] == shown[1] == shown[2]
    parts = Store.snapshots(url, "late")
    assert counts(url) == [(Shard("", n), 100 * (n + 1), 0, 0) for n in range(3)]
    average = weights(restore(combined(parts)).estimator)
    alone = [weights(restore(part).estimator) for part in parts]
    assert [weight["value"] for weight in shown[0]["weights"]] == [weight.value for weight in average]
    assert all([w.value for w in average] != [w.value for w in each] for each in alone)


def test_an_answer_is_of_no_later_version_than_its_service_shows(url: str) -> None:
    config = job(Path(), store=url)
    with ExitStack() as stack:
        first, second = (Replica(config, stack).http for _ in range(2))
        for i in range(6):
            http = (first, second)[i % 2]
            answer = learn(http, f"k{i}", record(i)).json()
            assert http.get("/v1/models/late").json()["version"] >= answer["version"] > i // 2
            assert http.get("/v1/models/late").json()["learned"] > i // 2


def test_a_retry_and_a_known_id_count_once_at_any_service(url: str) -> None:
    config = job(Path(), store=url, cap="eps=2")
    with ExitStack() as stack:
        first, second = (Replica(config, stack).http for _ in range(2))
        answer = learn(first, "k", record(1, id="a")).json()
        assert learn(second, "k", record(1, id="a")).json() == answer
        assert learn(second, "k", record(2, id="a")).status_code == 422
        assert learn(second, "l", record(1, id="a")).json()["learned"] == 1  # its id is known: it counts no more
        assert learn(second, "m", record(9, id="a")).json()["dead"] == [{"index": 0, "reason": "id_reused"}]
        person = [record(i, subject="p") for i in range(4)]
        refused = [learn(http, f"{i}", person[i]).json()["refused"] for i, http in enumerate((first, second) * 2)]
        assert refused == [0, 0, 1, 1]
    assert sum(learned for _, learned, _, _ in counts(url)) == 3


@pytest.mark.parametrize("what", some(["key", "key without a cap", "id without a cap"], 0))
def test_of_the_same_call_at_two_services_at_the_same_time_one_is_learned(what: str, url: str) -> None:
    config = job(Path(), store=url, cap=None if "cap" in what else "eps=5")
    keys = ("k", "l") if "id" in what else ("k", "k")
    with ExitStack() as stack:
        replicas = [Replica(config, stack).http for _ in range(2)]
        learn(replicas[0], "first", record(0))
        with ThreadPoolExecutor(2) as pool:
            with held(url) as wait_for:
                calls = [
                    pool.submit(learn, http, key, record(1, id="a"), record(2))
                    for http, key in zip(replicas, keys, strict=True)
                ]
                wait_for(2)
            answers = [call.result().json() for call in calls]
        assert [answer["learned"] for answer in answers] == [2, 2]
        if "key" in what:
            assert answers[0] == answers[1]
    # Two calls with one id: their second records have none, and both count.
    assert sum(learned for _, learned, _, _ in counts(url)) == (4 if "id" in what else 3)
    snapshot = combined(Store.snapshots(url, "late"))
    assert restore(snapshot).estimator.n_seen == snapshot.counts.learned


def test_of_two_records_of_a_person_at_the_same_time_the_cap_admits_one(url: str) -> None:
    config = job(Path(), store=url, cap="eps=1")
    with ExitStack() as stack:
        replicas = [Replica(config, stack).http for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            with held(url) as wait_for:
                calls = [
                    pool.submit(learn, http, f"k{n}", record(n, subject="p"), record(n))
                    for n, http in enumerate(replicas)
                ]
                wait_for(2)
            answers = [call.result().json() for call in calls]
        assert sorted((answer["learned"], answer["refused"]) for answer in answers) == [(1, 1), (2, 0)]
    assert (sum(c[1] for c in counts(url)), sum(c[2] for c in counts(url))) == (3, 1)


def test_features_wait_for_their_label_where_they_were_predicted(url: str) -> None:
    config = job(Path(), store=url)
    label = {"id": "a", "y": "True", "subject": "p"}
    with ExitStack() as stack:
        first, second = (Replica(config, stack).http for _ in range(2))
        first.post("/v1/models/late/predict", json={"records": [X], "ids": ["a"]})
        assert learn(second, "k", label).json()["dead"] == [{"index": 0, "reason": "unknown_id", "column": "id"}]
        assert learn(first, "l", label).json()["learned"] == 1
        assert learn(second, "l", label).json()["learned"] == 1  # a retry is known everywhere
    assert sum(learned for _, learned, _, _ in counts(url)) == 1


def report(http: httpx.Client, name: str) -> dict[str, Any]:
    half = LocalHalf(http.get("/v1/models/late/randomizer").content)
    return half.report(X, "True", name, subject=f"person of {name}")


def send(http: httpx.Client, *reports: dict[str, Any]) -> httpx.Response:
    key = {"Idempotency-Key": "-".join(each["id"] for each in reports)}
    return http.post("/v1/models/late/reports", json={"reports": reports}, headers=key)


def test_a_report_counts_at_the_service_whose_document_it_answers(
    url: str, adds: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = job(Path(), store=url)
    monkeypatch.setattr("streamdp.service.jobs.LEFT_S", 1e9)
    with ExitStack() as stack:
        first, second = Replica(config, stack), Replica(config, stack)
        learn(first.http, "k", *(record(i) for i in range(30)))
        shows(second.http, 30)
        a, b = report(first.http, "a"), report(second.http, "b")
        assert (a["version"], b["version"]) == (1, OF_A_SHARD)  # the second shard has no commit yet
        asked = [LocalHalf(r.http.get("/v1/models/late/randomizer").content).document for r in (first, second)]
        assert asked[0].theta != asked[1].theta == [0.0] * len(asked[1].theta)
        refused = send(second.http, a)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert "another service" in refused.json()["detail"]
        both = send(second.http, b, a).json()  # its own counts, and the other one is told
        assert (both["learned"], both["dead"]) == (1, [{"index": 1, "reason": "elsewhere"}])
        assert send(first.http, a).json()["learned"] == 1
        answer = send(second.http, a).json()  # a retry of the same call
        assert (answer["learned"], answer["dead"]) == (1, [])
        assert send(second.http, b, a).json() == both  # a retry, too
        assert send(second.http, a, b).json()["learned"] == 2  # another call: both are known
        dead = send(first.http, b | {"id": "d", "version": 5 * OF_A_SHARD}).json()["dead"]
        assert dead == [{"index": 0, "reason": "stale"}]  # there is no such shard

        late, lost = report(second.http, "late"), report(second.http, "lost")
        send(second.http, report(second.http, "more"))
        newest = report(second.http, "newest")
        shows(first.http, 33)  # so that it knows of the shard
        second.stop()
        assert send(first.http, lost).status_code == 503  # another service may take the shard over soon
        monkeypatch.setattr("streamdp.service.jobs.LEFT_S", 0.0)
        assert send(first.http, lost).json()["dead"] == [{"index": 0, "reason": "stale"}]
        adds(False)
        third = Replica(config, stack)
        wait_until(lambda: learning(third.http) == "1.0", PATIENCE_S)
        assert send(third.http, newest).json()["learned"] == 1  # it has taken the shard over
        assert send(third.http, late).json()["dead"] == [{"index": 0, "reason": "stale"}]
    assert [(shard.partition, n, dead) for shard, n, _, dead in counts(url)] == [(0, 31, 2), (1, 3, 2)]


def test_a_service_that_was_fenced_commits_nothing_and_goes_back(url: str, adds: Callable[[bool], None]) -> None:
    config = job(Path(), store=url)
    with ExitStack() as stack:
        first, second = (Replica(config, stack).http for _ in range(2))
        adds(False)
        assert learn(first, "k", record(1)).json()["learned"] == 1
        with config.open_store(NOTHING, shared=True) as thief:
            thief.claim([WHOLE])
            assert learn(first, "l", record(2)).status_code == 503
            assert learn(second, "l", record(2)).json()["learned"] == 1
        assert learned(first, "l", record(2))["learned"] == 1
        assert learned(first, "m", record(3))["learned"] == 1
    assert counts(url)[0] == (WHOLE, 2, 0, 0)
    assert sum(learned for _, learned, _, _ in counts(url)) == 3


def test_a_store_of_one_service_becomes_the_first_shard(url: str, adds: Callable[[bool], None]) -> None:
    alone, several = job(Path(), store=url, source=ONE), job(Path(), store=url)
    with client(alone) as http:
        assert learn(http, "k", record(1)).json()["learned"] == 1
    assert counts(url) == [(WHOLE, 1, 0, 0)]
    with ExitStack() as stack:
        adds(False)
        first = Replica(several, stack).http
        assert learned(first, "l", record(2))["learned"] == 1
        adds(True)
        second = Replica(several, stack).http
        assert learn(second, "m", record(3)).json()["learned"] == 1
    assert counts(url) == [(WHOLE, 2, 0, 0), (Shard("", 1), 1, 0, 0)]
    with client(alone) as http:  # a shard that nobody holds remains a part of the average
        assert http.get("/v1/models/late").json()["learned"] == 3
        assert learned(http, "n", record(9))["version"] == 4
    assert counts(url) == [(WHOLE, 3, 0, 0), (Shard("", 1), 1, 0, 0)]


def test_a_standby_shows_what_is_committed_and_takes_over_with_all_answers(url: str) -> None:
    config = job(Path(), store=url, cap="eps=2", source=ONE)
    with ExitStack() as stack:
        first, second = Replica(config, stack), Replica(config, stack)
        answer = learn(first.http, "k", record(1, id="a")).json()
        assert answer["learned"] == 1
        shows(second.http, 1)
        x = {"records": [X]}
        one, other = (r.http.post("/v1/models/late/predict", json=x).json() for r in (first, second))
        assert one == other
        refused = learn(second.http, "k", record(1, id="a"))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "waits for a shard" in refused.json()["detail"]
        assert second.http.get("/readyz").status_code == 200
        assert (learning(first.http), learning(second.http)) == ("1.0", "0.0")

        first.stop()
        assert learned(second.http, "k", record(1, id="a")) == answer
        assert learn(second.http, "l", record(1, id="a")).json()["learned"] == 1  # its id is known: it counts no more
        assert learn(second.http, "m", record(2, subject="p1"), record(3, subject="p1")).json()["refused"] == 1
        assert learning(second.http) == "1.0"
        third = Replica(config, stack)
        shows(third.http, 2)
        assert learning(third.http) == "0.0"
        third.stop()  # the end of a standby changes nothing
        assert learn(second.http, "n", record(4)).json()["learned"] == 1
    assert counts(url) == [(WHOLE, 3, 1, 0)]


def test_a_service_that_lost_its_session_unnoticed_commits_nothing_and_stands_by(url: str) -> None:
    config = job(Path(), store=url, source=ONE)
    with ExitStack() as stack:
        first = Replica(config, stack).http
        assert learn(first, "k", record(1)).json()["learned"] == 1
        sessions = holders(url)
        second = Replica(config, stack).http
        with psycopg.connect(url, autocommit=True) as admin:
            ended = admin.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", (sessions,)).fetchall()
        assert ended == [(True,)] * 2  # of the store, and of the shard with its commits
        assert learned(second, "l", record(2))["learned"] == 1
        assert learn(first, "m", record(3)).status_code == 503
        shows(first, 2)
        assert learn(second, "m", record(3)).json()["learned"] == 1
        assert (learning(first), learning(second)) == ("0.0", "1.0")
    assert counts(url) == [(WHOLE, 3, 0, 0)]


def test_a_service_ends_its_session_that_the_server_does_not_know_to_be_cut(
    server_database: str, adds: Callable[[bool], None]
) -> None:
    """It waited for its own shard for 25 seconds, and for ever if it could add no other one."""
    adds(False)
    there = make_url(server_database)
    with Proxy(there.port or 5432) as proxy:
        config = job(Path(), store=there.set(port=proxy.port).render_as_string(hide_password=False))
        with client(config) as http:
            assert learned(http, "k", record(1))["learned"] == 1
            before = set(holders(server_database))
            proxy.cut_clients()
            assert before <= set(holders(server_database))
            assert learned(http, "l", record(2))["learned"] == 1
    assert counts(server_database) == [(WHOLE, 2, 0, 0)]


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("TRIGGER {} BEFORE", marks=pytest.mark.campaign, id="before"),
        pytest.param("CONSTRAINT TRIGGER {} AFTER", marks=pytest.mark.campaign, id="at"),
    ],
)
def test_a_service_is_killed_in_a_commit_and_another_takes_its_shard(
    moment: str, server_database: str, tmp_path: Path
) -> None:
    url = server_database
    config = job(Path(), store=url, cap="eps=1")
    text = config.model_dump_json(by_alias=True, include={"job", "source", "schema_", "model", "cap", "store"})
    (tmp_path / "late.yaml").write_text(text)
    ports = free_ports(tmp_path, ("first", "second"))
    people = [record(i) for i in range(10)]
    with ExitStack() as stack:

        def start(name: str, shard_seconds: str) -> ServiceProcess:
            more = {"STREAMDP_SUBJECT_KEY": "5a" * 32, "TESTS_SHARD_SECONDS": shard_seconds}
            return stack.enter_context(ServiceProcess(tmp_path, ports[name], **more))

        first, second = start("first", "0"), start("second", "0")
        addresses = (first.address, second.address)
        one, other = (stack.enter_context(httpx.Client(base_url=at, timeout=PATIENCE_S)) for at in addresses)
        assert learn(one, "before", *people[:5]).json()["learned"] == 5
        pool = stack.enter_context(ThreadPoolExecutor(1))
        with held(url, moment) as wait_for:
            call = pool.submit(learn, one, "k", *people)
            wait_for(1)
            first.kill()
        assert isinstance(call.exception(), httpx.HTTPError)
        answer = learned(other, "k", *people)
        assert (answer["learned"], answer["refused"]) == (5, 5)
        assert learned(other, "more", *people)["refused"] == 10
        third = start("first", "inf")
        with httpx.Client(base_url=third.address, timeout=PATIENCE_S) as http:
            shows(http, 10)
            assert learned(http, "k", *people) == answer
            assert learned(http, "new", record(90))["learned"] == 1
    found = counts(url)
    committed = "CONSTRAINT" in moment
    assert [n for _, n, _, _ in found] == ([11, 0] if committed else [6, 5])
    assert sum(refused for _, _, refused, _ in found) == 15
