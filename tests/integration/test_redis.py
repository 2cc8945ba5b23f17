"""Redis streams: killed runs learn each entry once, and what is lost or replaced is refused."""

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from sqlalchemy.engine import make_url

from connectors.redis import RedisSource
from servers.redis import Redis
from streamdp.config.job import NOTHING, JobConfig, make_config
from streamdp.config.redis import RedisSourceConfig
from streamdp.errors import ConfigError, SourceError, SourceUnavailableError
from streamdp.runtime.runner import Progress, Runner
from streamdp.store.store import Store
from tests.support.commands import Quick, environment
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.zygote import Forked

ROWS = 10_000
SECRET = "REDIS_PASSWORD"


@pytest.fixture
def client(redis_server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, password=redis_server.password) as made:
        yield made


@pytest.fixture
def settings(redis_server: Redis, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job of a stream of a name never used before."""
    monkeypatch.setenv(SECRET, redis_server.password)
    stream = f"s{uuid.uuid4().hex[:12]}"
    return {
        "job": "stream",
        "source": {"type": "redis", "url": redis_server.url, "stream": stream, "password": {"env": SECRET}},
        "schema": {"features": {"x": [-1, 1]}, "target": {"column": "y", "bounds": [-2, 2]}},
        "model": {"trust": "nobody", "budget": "eps=1"},
        "commit": {"records": 250},
    }


def source(settings: dict[str, Any]) -> RedisSource:
    job: JobConfig = make_config(settings)
    assert isinstance(job.source, RedisSourceConfig)
    return job.source.build(job.build_schema())


def fill(client: redis.Redis, stream: str, count: int, first: int = 1) -> None:
    """Add entries with the ids `first`-1 and so on."""
    with client.pipeline() as many:
        for i in range(first, first + count):
            many.xadd(stream, {"x": str(i % 9 / 9), "y": str(i % 5 / 5)}, id=f"{i}-1")
        many.execute()


def read(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """Read the first entries; returns the position."""
    with closing(source(settings)) as first:
        assert len(first.poll(count, 0.0)) == count
        return first.position


def after(settings: dict[str, Any], row: int) -> dict[str, Any]:
    """The position after the entry that `fill` has added as this one."""
    return {"id": f"{row}-1", "row": row, "stream": settings["source"]["stream"]}


def refusal(settings: dict[str, Any], position: dict[str, Any]) -> str:
    def read_on() -> None:
        with closing(source(settings)) as later:
            later.seek(position)
            later.poll(10, 0.0)

    with pytest.raises(SourceError) as error:
        read_on()
    return str(error.value)


def test_kills_lose_and_repeat_no_entry(client: redis.Redis, settings: dict[str, Any], tmp_path: Path) -> None:
    stream = settings["source"]["stream"]
    settings["source"]["dead_letters"] = "bad.jsonl"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    written = tmp_path / "out"
    rows, kills, done = 0, 0, 0
    while done <= rows:
        if done == rows:  # a run may end before its kill: then there are more entries for the next one
            more = max(ROWS, 3 * rows)
            fill(client, stream, more, first=rows + 1)
            rows += more
        if last := kills == 2:
            client.xadd(stream, {"x": "none", "y": "1"}, id=f"{rows + 1}-1")
        with written.open("wb") as out:
            given = environment(None, **{SECRET: Redis.password})
            run = Forked(["run", "job.yaml"], cwd=tmp_path, env=given, stdout=out, stderr=out)
            if not last:
                wait_until(lambda run=run: run.poll() is not None or written.read_bytes().count(b'"commit"') > 3)
                run.kill()
            code = run.wait()
        assert code in ((0,) if last else (0, -9)), written.read_text()
        with Store(tmp_path / "stream.db", "stream", make_config(settings).fingerprint()) as store:
            snapshot = store.load()
        done = snapshot.counts.learned + snapshot.counts.dead_letters
        assert snapshot.position == after(settings, done)  # the state's
        assert code or done >= rows
        kills += done < rows
    assert (snapshot.counts.learned, snapshot.counts.refused, snapshot.counts.dead_letters) == (rows, 0, 1)
    letters = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert [json.loads(letter)["position"] for letter in letters] == [rows + 1]


def test_check_reads_the_stream_and_learns_nothing(
    client: redis.Redis, settings: dict[str, Any], tmp_path: Path, quick: Quick
) -> None:
    stream = settings["source"]["stream"]
    fill(client, stream, 20)
    client.xadd(stream, {"x": "none", "y": "1"}, id="21-1")
    settings["source"]["follow"] = True
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    found = json.loads(quick.output("check", "job.yaml", "--json"))
    assert (found["records"], found["fit"]) == (21, 20)
    assert found["unfit"] == [{"reason": "not_a_number", "column": "x", "records": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_what_does_not_fit_is_a_dead_letter(client: redis.Redis, settings: dict[str, Any]) -> None:
    add = settings["source"]["stream"]
    client.execute_command("XADD", add, "*", "value", b'{"x": 0.5, "y": 1}')
    client.execute_command("XADD", add, "*", "x", "0.5", "y", "1", "other", '"')
    client.execute_command("XADD", add, "*", "x", "0.5")
    client.execute_command("XADD", add, "*", "x", b"\xff", "y", "1")
    client.execute_command("XADD", add, "*", "x", "1", "x", "0", "y", "1")
    client.execute_command("XADD", add, "*", "value", b"[")
    settings["source"] |= {"dead_letters": "bad.jsonl", "keep_payload": True}
    with closing(source(settings)) as entries:
        batch = entries.poll(100, 0.0)
        assert entries.finished
    assert batch.X.tolist() == [[0.5], [0.5]]
    reasons = {3: "missing", 4: "not_utf8", 5: "duplicate_key", 6: "not_json"}
    assert {letter.position: letter.reason for letter in batch.dead} == reasons
    assert [letter.payload for letter in batch.dead][::3] == [b'{"x":"0.5"}', b"["]


def test_following_waits_for_entries(client: redis.Redis, settings: dict[str, Any]) -> None:
    stream = settings["source"]["stream"]
    settings["source"]["follow"] = True
    with closing(source(settings)) as entries:
        assert len(entries.poll(10, 0.0)) == 0  # there is no stream yet
        later = threading.Thread(target=fill, args=(client, stream, 3))
        later.start()
        seen = 0
        while seen < 3:
            seen += len(entries.poll(10, 1.0))
        later.join()
        assert not entries.finished
        assert entries.position == after(settings, 3)


def test_an_outage_ends_no_run(
    client: redis.Redis, redis_server: Redis, settings: dict[str, Any], tmp_path: Path
) -> None:
    """It ended one that followed a stream. Nothing is lost, and nothing is read twice."""
    stream, told = settings["source"]["stream"], threading.Event()
    fill(client, stream, 30)
    address = make_url(redis_server.url)
    with Proxy(address.port or 6379) as proxy, ExitStack() as outage:
        settings["source"] |= {"url": f"redis://127.0.0.1:{proxy.port}/0", "follow": True}

        def go_on(message: str) -> None:
            assert "Redis does not answer" in message
            fill(client, stream, 10, 31)
            told.set()
            outage.close()

        def fail(progress: Progress) -> None:
            if progress.committed.learned == 30 and not told.is_set():
                outage.enter_context(proxy.away())
            if progress.committed.learned == 40:
                runner.stop()

        job = make_config(settings | {"store": str(tmp_path / "a.db")})
        with closing(source(settings)) as entries, job.open_store(NOTHING) as store:
            options: dict[str, Any] = {"commit_seconds": 0.1, "on_progress": fail, "on_waiting": go_on}
            runner = Runner(entries, job.build_estimator(store.ledger), store, **options)
            assert runner.run().learned == 40
    assert told.is_set()
    assert Store.snapshot(tmp_path / "a.db").position == after(settings, 40)


def test_entries_trimmed_unread_are_refused(client: redis.Redis, settings: dict[str, Any]) -> None:
    stream = settings["source"]["stream"]
    fill(client, stream, 20)
    client.xtrim(stream, maxlen=18, approximate=False)  # before the job began
    position = read(settings, 8)
    assert position == after(settings, 10)
    assert "has read the Redis stream 'other' so far" in refusal(settings, position | {"stream": "other"})
    client.xtrim(stream, maxlen=10, approximate=False)  # all that was read
    with closing(source(settings)) as later:
        later.seek(position)
        assert later.poll(1, 0.0).position == after(settings, 11)
    client.xtrim(stream, maxlen=7, approximate=False)
    assert "3 were trimmed before they were read" in refusal(settings, position)
    client.xtrim(stream, maxlen=0)
    assert "10 were trimmed" in refusal(settings, position)


def test_deleted_entries_are_no_loss(client: redis.Redis, settings: dict[str, Any]) -> None:
    stream = settings["source"]["stream"]
    fill(client, stream, 20)
    position = read(settings, 10)
    client.xdel(stream, "12-1", "13-1")  # one by one
    with closing(source(settings)) as later:
        later.seek(position)
        assert len(later.poll(100, 0.0)) == 8
        position = later.position
    client.xtrim(stream, maxlen=0)
    fill(client, stream, 5, first=21)
    with closing(source(settings)) as later:
        later.seek(position)
        assert len(later.poll(100, 0.0)) == 5


@pytest.mark.parametrize("first", [1, 1000])
def test_a_stream_made_anew_is_refused(client: redis.Redis, settings: dict[str, Any], first: int) -> None:
    stream = settings["source"]["stream"]
    fill(client, stream, 20)
    position = read(settings, 20)
    client.delete(stream)
    assert "has no stream" in refusal(settings, position)
    fill(client, stream, 19, first=first)
    assert "deleted or made anew" in refusal(settings, position)


def test_a_server_or_stream_that_is_not_there(
    client: redis.Redis, settings: dict[str, Any], tmp_path: Path, quick: Quick
) -> None:
    stream = settings["source"]["stream"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    assert "has no stream" in quick.error(3, "run", "job.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]
    assert "has no stream" in refusal(settings, after(settings, 0))
    client.set(stream, "text")
    assert "WRONGTYPE" in refusal(settings, after(settings, 0))
    settings["source"] |= {"password": None}
    assert "refused to read" in refusal(settings, after(settings, 0))
    settings["source"] |= {"url": "redis://127.0.0.1:1"}
    with closing(source(settings)) as away, pytest.raises(SourceUnavailableError):
        away.poll(1, 0.0)
    settings["source"] |= {"url": "redis://:secret@127.0.0.1:1"}
    with pytest.raises(ConfigError) as error:
        make_config(settings)
    assert "secret" not in str(error.value)
