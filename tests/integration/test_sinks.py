"""Published commits in a real table, a real topic and at a real web server, after kills and while these are down."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from connectors.kafkasink import TopicReader
from connectors.sinks import Message, TableSink
from servers.broker import Broker, create_topic
from streamdp.cli.kafka_job import produce
from streamdp.config.job import make_config
from streamdp.errors import ConfigError
from streamdp.runtime.learning import total
from streamdp.serving import publish
from streamdp.serving.publish import Outlet, committed
from streamdp.store.reading import sinks
from tests.support import service
from tests.support.commands import Command, Quick, environment
from tests.support.kafka_job import JOB as FLIGHTS
from tests.support.kafka_job import TOTAL, counts
from tests.support.kafka_job import rows as flights
from tests.support.serving import Answering, serving
from tests.support.waiting import wait_until
from tests.support.zygote import Forked

JOB: dict[str, Any] = {
    "job": "été",
    "source": {"path": "data.csv"},
    "schema": {"features": {"x": [-1, 1]}, "target": {"column": "y", "bounds": [-2, 2]}},
    "model": {"trust": "nobody", "budget": "eps=1"},
    "commit": {"records": 100},
    "store": "job.db",
}


class Web:
    """A web server that answers each POST with the next of `answers`, then with 200."""

    url: str

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []  # key, document; of those answered with 200
        self.answers: list[int] = []
        web = self

        class Handler(Answering):
            def do_POST(self) -> None:
                body = json.loads(self.body())
                code = web.answers.pop(0) if web.answers else 200
                if code == 200:
                    web.requests.append((self.headers["Idempotency-Key"], body))
                self.answer(code, b"")

        self.handler = Handler


@pytest.fixture
def web() -> Iterator[Web]:
    found = Web()
    with serving(found.handler) as url:
        found.url = url + "/commits"
        yield found


def write(folder: Path, publish: Any, rows: int = 100) -> None:
    (folder / "data.csv").write_text("x,y\n" + "".join(f"{i % 7 / 7},{i % 5 / 5}\n" for i in range(rows)))
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB | {"publish": publish}))


def rows(url: str, table: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT job, commit, document FROM {table} ORDER BY commit").fetchall()


def test_a_commit_before_a_kill_is_published_by_the_next_start(
    tmp_path: Path, web: Web, server_database: str, broker: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(1, {"cleanup.policy": "compact"})
    url = server_database.replace("+psycopg", "")
    publish = [
        {"type": "postgresql", "url": url, "table": "commits"},
        {"type": "kafka", "brokers": broker.bootstrap, "topic": topic},
        web.url,
        "model.json",
    ]
    write(tmp_path, publish)

    def run(**more: str) -> int:
        with (tmp_path / "out").open("wb") as out:
            return Forked(
                ["run", "job.yaml"], cwd=tmp_path, env=environment(None, **more), stdout=out, stderr=out
            ).wait()

    assert run(TESTS_KILLED_BEFORE_SINKS="1") == -signal.SIGKILL
    assert web.requests == []
    for start in (1, 2):  # the second start sends the commit again
        assert run() == 0, (tmp_path / "out").read_text()
        document = json.loads((tmp_path / "model.json").read_text())
        assert document["commit"] == 1
        assert document["counts"]["learned"] == 100
        assert rows(url, "commits") == [("été", 1, document)]
        with closing(TopicReader(topic, broker.bootstrap, {})) as reader:
            found = list(reader.read({}))
        assert [(m.key.decode(), json.loads(m.value), dict(m.headers)["commit"]) for m in found] == start * [
            ("été", document, b"1")
        ]
        assert [body for _, body in web.requests] == start * [document]
        assert len({key for key, _ in web.requests}) == 1


def test_sinks_that_are_down_stop_and_lose_nothing(tmp_path: Path, web: Web, quick: Quick) -> None:
    write(tmp_path, ["postgresql://nobody@127.0.0.1:1/none?table=t", web.url], 1000)
    web.answers = [503] * 1000
    out, err = quick("run", "job.yaml")[1:]
    assert [json.loads(line)["learned"] for line in out.splitlines() if '"commit"' in line] == [*range(100, 1001, 100)]
    assert json.loads(out.splitlines()[-1])["event"] == "publish"  # the end says which commit a sink does not have
    assert err.count("cannot publish to the table t, trying again: no connection to the database") == 1
    assert err.count("trying again: it answered 503") == 1
    assert "does not have commit 10: the next run" in err
    shown = json.loads(quick.output("status", "job.db", "--json"))["sinks"]
    assert [(one["name"], one["commit"], one["reason"]) for one in shown] == [
        ("the table t", 0, "no connection to the database"),
        (f"the webhook of {urlsplit(web.url).netloc}", 0, "it answered 503"),
    ]
    assert all(one["failing_since"] > 0 for one in shown)
    assert "the table t has no commit yet; it fails since 20" in quick.output("status", "job.db")
    web.answers = []
    write(tmp_path, web.url, 1000)
    assert "publish" not in "".join(quick("run", "job.yaml")[1:])
    assert [body["commit"] for _, body in web.requests] == [10]
    (one,) = json.loads(quick.output("status", "job.db", "--json"))["sinks"]  # of the job as it is now
    assert (one["commit"], one["failing_since"], one["reason"]) == (10, 0, "")
    assert re.search(r"sink: +the webhook of .* has commit 10\n", quick.output("status", "job.db"))


def test_a_sink_that_is_back_gets_the_last_commit(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "FIRST_WAIT_S", 0.01)
    web.answers = [500, 302, 404]
    told: list[str] = []
    settings = make_config(JOB | {"publish": web.url}).publish[0]
    assert not isinstance(settings, str)
    sending = Outlet(settings, told.append, lambda name, sent, reason: None)
    for commit in range(1, 4):
        sending.offer(Message("j", commit, float(commit), b"%d" % commit))
    wait_until(lambda: sending.trouble is None and len(told) == 2)
    sending.close()
    assert web.requests[-1] == ("j/3/1970-01-01T00:00:03+00:00", 3)
    assert [("trying again" in one, "again" in one) for one in told] == [(True, True), (False, True)]


def test_a_table_has_a_commit_once_and_a_job_that_began_again_replaces_it(server_database: str) -> None:
    url = server_database.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA seen")
    for at, document in [(5.0, b'"first"'), (5.0, b'"again"'), (4.0, b'"earlier"')]:
        sink = TableSink(url, "seen.models")
        sink.send(Message("j", 1, at, document))
        sink.close()
        assert rows(url, "seen.models") == [("j", 1, "first")]
    sink = TableSink(url, "seen.models")
    sink.send(Message("j", 1, 6.0, b'"new"'))
    sink.send(Message("k", 1, 6.0, b'"other"'))
    sink.close()
    assert sorted(rows(url, "seen.models")) == [("j", 1, "new"), ("k", 1, "other")]


def last_of(topic: str, bootstrap: str) -> dict[str, Any]:
    """The document with the greatest `committed_at` in a topic."""
    with closing(TopicReader(topic, bootstrap, {})) as reader:
        documents = [json.loads(message.value) for message in reader.read({})]
    return max(documents, key=lambda found: float(found["committed_at"]))


def known(store: Path, job: str) -> list[tuple[str, int, bool, str]]:
    found = sinks(store, job)
    return [(one.name.split()[1], one.commit, one.failing_since > 0, one.reason) for one in found]


@pytest.mark.campaign  # a minute for the broker; the next test is quick
def test_two_workers_publish_all_that_they_learned_after_a_broker_was_killed(tmp_path: Path, web: Web) -> None:
    text = FLIGHTS.replace("publish: model.json\nholdout: data.csv\n", "").replace("  publish_topic: MODELS\n", "")
    for word, value in {"JOBNAME": "kj", "DEADTOPIC": "dead", "TOPIC": "flights", "STORE": "kj.db"}.items():
        text = text.replace(word, value)
    with Broker(tmp_path / "broker") as own, ExitStack() as stack:
        publish = [{"type": "kafka", "brokers": own.bootstrap, "topic": "models"}, web.url]
        (tmp_path / "job.yaml").write_text(text + yaml.safe_dump({"publish": publish}))
        (tmp_path / "data.csv").write_text(flights(2000))
        for topic, partitions in (("flights", 2), ("dead", 1), ("models", 1)):
            create_topic(own.bootstrap, topic, partitions)
        produce(str(tmp_path / "data.csv"), "flights", own.bootstrap, "tail", partitions=2)
        workers = [stack.enter_context(Command(tmp_path, own.bootstrap, "run", "job.yaml")) for _ in range(2)]
        workers[0].until(lambda: (tmp_path / "kj.db").exists() and counts(tmp_path / "kj.db").learned)
        own.kill()
        own.start()
        produce(str(tmp_path / "data.csv"), "flights", own.bootstrap, "tail", partitions=2)
        workers[0].until(lambda: total(counts(tmp_path / "kj.db")) == 2 * TOTAL)
        for worker in workers:
            worker.process.terminate()
        assert [worker.end() for worker in workers] == [0, 0]
        newest = committed(str(tmp_path / "kj.db")).snapshot
        last = max((body for _, body in web.requests), key=lambda found: float(found["committed_at"]))
        for found in (last, last_of("models", own.bootstrap)):
            assert (found["commit"], sum(found["counts"].values())) == (newest.seq, 2 * TOTAL)
    expected = [("topic", newest.seq, False, ""), ("webhook", newest.seq, False, "")]
    assert known(tmp_path / "kj.db", "kj") == expected


def test_the_service_publishes_each_last_commit_and_shows_a_sink_that_fails(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "FIRST_WAIT_S", 0.01)
    config = service.job(tmp_path, publish=web.url)
    with service.client(config) as http:
        call = {"records": [service.record(i) for i in range(20)]}
        assert http.post("/v1/models/late/learn", json=call).is_success
        wait_until(lambda: web.requests)
        web.answers = [503] * 100_000
        assert http.post("/v1/models/late/learn", json={"records": [service.record(99)]}).is_success
        wait_until(lambda: http.get("/v1/models/late").json()["unpublished"] == ["it answered 503"])
        has = web.requests[-1][1]["commit"]
        wait_until(lambda: known(tmp_path / "late.db", "late") == [("webhook", has, True, "it answered 503")])
        web.answers = []
        wait_until(lambda: http.get("/v1/models/late").json()["unpublished"] == [])
    newest = committed(str(tmp_path / "late.db")).snapshot
    assert web.requests[-1][1]["commit"] == newest.seq
    assert known(tmp_path / "late.db", "late") == [("webhook", newest.seq, False, "")]


@pytest.mark.parametrize(
    ("publish", "message"),
    [
        ({"type": "mqtt", "url": "x"}, "publish: expected one of file, postgresql, kafka, webhook"),
        ("ftp://host/file", "publish: expected a file, postgresql://"),
        ({"type": "postgresql", "url": "postgresql://h/d"}, "publish.table: missing setting"),
        (["a.json", {"type": "webhook", "url": "http://h/", "tokn": {"env": "T"}}], "publish.tokn: unknown setting"),
    ],
)
def test_a_wrong_sink_is_named(publish: Any, message: str) -> None:
    with pytest.raises(ConfigError, match="^" + message.replace("(", r"\(")):
        make_config(JOB | {"publish": publish})
