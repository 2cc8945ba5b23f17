"""A file or a topic has each letter of a committed record once, also if a run dies between letters and commit."""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from connectors.kafkasink import TopicWriter, read_topic
from connectors.letterfile import DeadLetterFile
from connectors.lettertopic import DeadLetterTopic
from servers.broker import Broker
from streamdp import LDPASGDRegressor
from streamdp.data.records import WHOLE, DeadLetter, Shard
from streamdp.runtime.runner import Runner
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Counts, Part, Snapshot
from streamdp.store.store import Store
from tests.support.clock import FakeClock
from tests.support.memory import BAD, Entry, MemoryShards, MemorySource

SHARDS = [Shard("clicks", 0), Shard("clicks", 1)]
SIZE = 60
BAD_EVERY = 4


class DiedError(BaseException):
    """The process dies here: nothing of it runs any more."""


class DyingStore(Store):
    """Dies at its n-th commit, before it writes anything."""

    left = 0

    def commit_parts(self, parts: Mapping[Shard, Part], within: Any = None) -> dict[Shard, Snapshot]:
        self.left -= 1
        if self.left == 0:
            raise DiedError
        return super().commit_parts(parts, within)


def items(first: int) -> list[Entry]:
    return [BAD if i % BAD_EVERY == first else ({"a": 1.0}, 0.5, None, None) for i in range(SIZE)]


def bad(first: int) -> list[int]:
    return list(range(first, SIZE, BAD_EVERY))


def model() -> Any:
    return LDPASGDRegressor(features=["a"], budget="eps=1")


def streams() -> dict[Shard, list[Entry]]:
    return {shard: items(i + 1) for i, shard in enumerate(SHARDS)}


def until_quiet(store: Store, letters: Any) -> int:
    """A worker that reads to the end, in polls of seven records, on a clock that only sleep moves."""
    clock = FakeClock()
    source = MemoryShards(streams(), ["a"], sizes=iter(lambda: 7, None), sleep=clock.sleep)
    timing: dict[str, Any] = {"clock": clock, "sleep": clock.sleep, "wait": lambda calls, _: wait(calls)}
    return Worker(source, model, store, commit_records=10, dead_letters=letters, **timing).run(idle_seconds=1.0)


def work(path: Path, letters: Any, dies_at: int = 0) -> int:
    """A worker that dies at a commit; 0: it reads to the end."""
    with DyingStore(path, "job", "f", shared=True) as store:
        store.left = dies_at
        return until_quiet(store, letters)


@pytest.fixture
def topic(
    broker: Broker, make_topic: Callable[..., str]
) -> Iterator[tuple[Callable[[], Any], Callable[[], list[Any]]]]:
    name = make_topic(3)
    with ExitStack() as stack:

        def opened() -> DeadLetterTopic:
            return stack.enter_context(closing(DeadLetterTopic(name, broker.bootstrap)))

        yield opened, lambda: [json.loads(value) for value in read_topic(broker.bootstrap, name, {})]


@pytest.fixture
def file(tmp_path: Path) -> tuple[Callable[[], Any], Callable[[], list[Any]]]:
    path = tmp_path / "dead.jsonl"
    return lambda: DeadLetterFile(path), lambda: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("place", ["file", "topic"])
def test_a_worker_that_dies_between_letters_and_commit_leaves_each_letter_once(
    request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    opened, written = request.getfixturevalue(place)
    before, deaths = 0, (1, 3, 2) if place == "topic" else (1, 2, 3, 5, 2)
    for dies_at in deaths:
        with pytest.raises(DiedError):
            work(tmp_path / "job.db", opened(), dies_at)
        snapshots = Store.snapshots(tmp_path / "job.db") if (tmp_path / "job.db").exists() else []
        before += len(written()) > sum(s.counts.dead_letters for s in snapshots)
    assert before >= len(deaths) / 2, "letters were written before their commit"
    work(tmp_path / "job.db", opened())
    found = sorted((item["partition"], item.get("offset", item.get("position"))) for item in written())
    assert found == [(i, at) for i in range(len(SHARDS)) for at in bad(i + 1)]
    assert sum(snapshot.counts.dead_letters for snapshot in Store.snapshots(tmp_path / "job.db")) == len(found)


def test_a_broker_is_tried_again_before_messages_expire(broker: Broker, make_topic: Callable[..., str]) -> None:
    """If not, each message expires while the client waits, and it never sends again (found by the kill matrix)."""
    with closing(TopicWriter(make_topic(1), broker.bootstrap)) as writer:
        config = writer._made.config
    assert 4 * config["reconnect_backoff_max_ms"] < config["delivery_timeout_ms"]


@pytest.mark.parametrize("place", ["file", "topic"])
def test_a_commit_before_letters_that_were_written_leaves_them_for_the_next_run(
    request: pytest.FixtureRequest, place: str
) -> None:
    """A run dies with five letters written; the next one commits after two of them, as at a smaller batch, and dies."""
    opened, written = request.getfixturevalue(place)
    (shard, _), letters = SHARDS, [DeadLetter(i, "bad", None) for i in range(5)]
    run = opened()
    run.resume({shard: None})
    run.write(letters, shard)
    run.commit()
    run = opened()
    run.resume({shard: None})
    run.write(letters[:2], shard)
    committed = run.commit()
    run = opened()
    run.resume({shard: committed})
    run.write(letters[2:], shard)
    run.commit()
    assert sorted(item.get("offset", item.get("position")) for item in written()) == list(range(5))


def test_a_runner_that_dies_between_letters_and_commit_leaves_each_letter_once(tmp_path: Path, file: Any) -> None:
    opened, written = file
    (tmp_path / "dead.jsonl").write_text('{"position": 1, "reason": "bad", "column": null}\n')  # of an earlier job

    def run(dies_at: int) -> Counts:
        with DyingStore(tmp_path / "job.db", "job", "f") as store:
            store.left = dies_at
            return Runner(MemorySource(items(1), ["a"]), model(), store, commit_records=9, dead_letters=opened()).run()

    for dies_at in (1, 2, 4, 2):
        with pytest.raises(DiedError):
            run(dies_at)
    assert run(0).dead_letters == len(bad(1))
    assert [item["position"] for item in written()] == [1, *bad(1)]


def test_a_worker_that_lost_its_shards_writes_no_letter_of_them(tmp_path: Path, file: Any) -> None:
    opened, written = file
    path = tmp_path / "job.db"

    class LateStore(Store):
        """Another worker claims the shards and learns them all before the second commit of this one."""

        commits = 0

        def check_claims(self, shards: Any) -> None:
            self.overtaken()
            super().check_claims(shards)

        def overtaken(self) -> None:
            self.commits += 1
            if self.commits == 2:
                work(path, opened())

    with LateStore(path, "job", "f", shared=True) as store:
        until_quiet(store, opened())
    assert store.commits >= 2
    assert sorted((item["partition"], item["position"]) for item in written()) == [
        (i, at) for i in range(len(SHARDS)) for at in bad(i + 1)
    ]


def test_an_unfinished_line_goes_and_lines_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_text('notes of somebody\n{"position": 7, "reason": "mis')
    writer = DeadLetterFile(path)
    assert writer.commit() == 1
    path.write_text(path.read_text() + "notes without an end")
    writer.write([DeadLetter(9, "missing", "a")])
    assert writer.commit() == 3
    letter = '{"position": 9, "reason": "missing", "column": "a"}'
    assert path.read_text().splitlines() == ["notes of somebody", "notes without an end", letter]
    writer.resume({WHOLE: 3})
    writer.write([DeadLetter(9, "missing", "a")])
    assert writer.commit() == 4, "this line was committed: the letter is another one"
    writer.resume({WHOLE: 2})
    writer.write([DeadLetter(9, "missing", "a")] * 3)
    assert writer.commit() == 5, "two were found"
    path.write_text("")
    writer.write([DeadLetter(10, "missing", "a")])
    assert writer.commit() == 1
    writer.close()
