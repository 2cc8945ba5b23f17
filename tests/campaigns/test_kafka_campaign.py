"""Workers, broker and database are killed, stopped and woken at random: every message still counts exactly once.

The topic is read again at the end and replayed in plain Python: a partition's order is that of its offsets and each
subject has one partition, so the replay is exact. A trigger in the database writes down every claim and every commit
that ever was, and each of them must be the replay's. A model without noise says by its state which records it learned.
Some subjects' records are spread over three partitions on purpose, never over their cap, so that workers conflict.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kafka
import numpy as np
import psycopg
import pytest

from servers.broker import Broker, create_topic
from servers.postgres import Postgres
from servers.process import Process
from streamdp import PureDP
from streamdp.data.records import Shard
from streamdp.ledger.subject_key import ENVIRONMENT, hash_subjects
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store
from tests.support.kafka_worker import CAP, FINGERPRINT, JOB, SCHEMA, make_model
from tests.support.paths import ROOT, with_root

pytestmark = pytest.mark.campaign

PARTITIONS = 4
TOPIC = "stream"
MOST_WORKERS = 4
PATIENCE_S = 300.0  # no test waits so long unless something is wrong
PROGRAM = ROOT / "tests" / "support" / "kafka_worker.py"

AUDIT = """
CREATE TABLE audit (id bigserial PRIMARY KEY, partition int, epoch bigint, seq bigint,
                    learned bigint, refused bigint, dead bigint, position text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO audit (partition, epoch, seq, learned, refused, dead, position)
  VALUES (NEW.partition, NEW.epoch, NEW.seq, NEW.learned, NEW.refused, NEW.dead, NEW.position);
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON shards FOR EACH ROW EXECUTE FUNCTION note();
"""


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int | None = None


class Feed(threading.Thread):
    """Produces for as long as it is let, at `rate` messages a second."""

    def __init__(self, bootstrap: str, rate: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, linger_ms=5, reconnect_backoff_max_ms=500, max_block_ms=120_000
        )
        self._rate = rate
        self._rng = random.Random(seed)
        self._made = 0
        self._over = threading.Event()
        self._error: BaseException | None = None
        self.sent: list[tuple[Message, Any]] = []

    def run(self) -> None:
        try:
            while not self._over.wait(0.02):
                for _ in range(int(self._rate * 0.02)):
                    for message in self._next():
                        future = self._producer.send(TOPIC, message.value, message.key, partition=message.partition)
                        self.sent.append((message, future))
            self._producer.flush(120)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it again
            self._error = error

    def _next(self) -> list[Message]:
        rng = self._rng
        self._made += 1
        fields = {"a": round(rng.random(), 3), "b": round(rng.uniform(-1, 1), 3), "y": round(rng.gauss(0, 1), 3)}
        if rng.random() < 0.003:  # one subject, three partitions, and just what fits under the cap
            value = json.dumps(fields | {"epsilon": CAP / 3}).encode()
            return [Message(b"t%d" % self._made, value, p) for p in rng.sample(range(PARTITIONS), 3)]
        subject = b"s%d" % (self._made // 6 + rng.randrange(1000))
        epsilon = rng.choice([None, 0.1, 0.7, 1.5])
        good = fields if epsilon is None else fields | {"epsilon": epsilon}
        if rng.random() > 0.03:
            return [Message(subject, json.dumps(good).encode())]
        match rng.randrange(5):
            case 0:
                return [Message(subject, b'{"a": 0.5, "b"')]
            case 1:
                return [Message(subject, json.dumps({"a": 0.5, "y": 1}).encode())]
            case 2:
                return [Message(subject, json.dumps(fields | {"a": "n/a"}).encode())]
            case 3:
                return [Message(subject, json.dumps(fields | {"epsilon": -1}).encode())]
            case _:
                return [Message(None, json.dumps(good).encode())]

    def end(self) -> None:
        """Let everything that was sent be acknowledged."""
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error
        assert all(future.succeeded() for _, future in self.sent)

    def drop(self) -> None:
        self._over.set()
        with contextlib.suppress(kafka.errors.KafkaError):
            self._producer.close(0)


class Replay:
    """The topic by plain Python."""

    def __init__(self, messages: dict[int, list[Message]]) -> None:
        self.counts: dict[int, list[Counts]] = {}
        self.admitted: dict[int, list[dict[str, float]]] = {}
        self.spent: dict[bytes, float] = {}
        for partition, stream in messages.items():
            now = Counts()
            self.counts[partition] = [now]
            self.admitted[partition] = []
            for key, value, _ in stream:
                fields = _decoded(key, value)
                if key is None or fields is None:
                    now = Counts(now.learned, now.refused, now.dead + 1)
                else:
                    epsilon = fields.get("epsilon") or 1.0
                    fits = self.spent.get(key, 0.0) + epsilon <= CAP * (1 + 1e-9)
                    self.spent[key] = self.spent.get(key, 0.0) + (epsilon if fits else 0.0)
                    if fits:
                        self.admitted[partition].append(fields)
                    now = Counts(now.learned + fits, now.refused + (not fits), now.dead)
                self.counts[partition].append(now)

    def state(self, partition: int, learned: int) -> np.ndarray:
        rows = [SCHEMA.encode_one(fields) for fields in self.admitted[partition][:learned]]
        model = make_model()
        model.learn_arrays(np.array([[x["a"], x["b"]] for x, _ in rows]), np.array([y for _, y in rows]))
        return model.state_dict()["state"]


def _decoded(key: bytes | None, value: bytes | None) -> dict[str, float] | None:
    try:
        fields = json.loads(value or b"")
    except ValueError:
        return None
    numbers = {name: fields.get(name) for name in ("a", "b", "y")}
    good = all(isinstance(v, int | float) for v in numbers.values()) and fields.get("epsilon", 1) > 0
    return fields if good else None


def read_topic(bootstrap: str) -> dict[int, list[Message]]:
    """All of it, by a client that has nothing to do with the library."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    try:
        partitions = [kafka.TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        found: dict[int, list[Message]] = {p: [] for p in range(PARTITIONS)}
        while any(len(found[p.partition]) < ends[p] for p in partitions):
            for place, records in consumer.poll(1000, 100_000).items():
                for record in records:
                    assert record.offset == len(found[place.partition])
                    found[place.partition].append(Message(record.key, record.value))
        return found
    finally:
        consumer.close()


class Campaign:
    """Servers, workers, and what happens to them."""

    def __init__(self, folder: Path, seed: int, session_ms: int, rate: float, client: str) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.session_ms = session_ms
        self.client = client
        self.broker = Broker(folder / "kafka")
        self.postgres = Postgres(folder / "postgres")
        self.rate = rate
        self.key = self.rng.randbytes(32)
        self.environment = with_root() | {ENVIRONMENT: self.key.hex()}
        self.log_file = folder / "events.jsonl"
        self.log_file.touch()
        self.log: list[dict[str, Any]] = []
        self._read = 0
        self.workers: dict[str, Process] = {}
        self._started = 0
        self.figures: Counter[str] = Counter()
        self.longest_catch_up = 0.0

    def run(self, events: list[Callable[[], None]], catch_up_every: int) -> None:
        began = time.monotonic()
        with self.broker, self.postgres:
            create_topic(self.broker.bootstrap, TOPIC, PARTITIONS)
            with Store(self.postgres.url, JOB, FINGERPRINT, cap=PureDP(CAP), key=self.key, shared=True):
                self._sql(AUDIT)
            self.feed = Feed(self.broker.bootstrap, self.rate, self.rng.randrange(1 << 30))
            self.feed.start()
            try:
                for _ in range(3):
                    self._start_worker()
                self._wait(lambda: self._count("committed") > 5, "the first commits")
                for i, event in enumerate(events, 1):
                    event()
                    self._check_alive()
                    print(f"{time.monotonic() - began:6.0f} s {i}/{len(events)} {_line(self.figures)}", flush=True)
                    if i % catch_up_every == 0:
                        self._catch_up()
                self.feed.end()
                self._catch_up()
                self._leave(*self.workers)
                self.check()
            finally:
                self.feed.drop()
                for process in self.workers.values():
                    process.end(signal.SIGKILL)
        self.figures["seconds"] = round(time.monotonic() - began)

    # -- what happens ------------------------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        """SIGKILL some workers at one random instant, and start others for them, at once or a little later."""
        self._need_workers(max(2, number))
        if self.rng.random() < 0.75:
            self._wait_for_commits(self.rng.randrange(1, 5))
        time.sleep(self.rng.uniform(0, 0.5))
        self._check_alive()
        for name in self.rng.sample(sorted(self.workers), number):
            self.figures["kills"] += 1
            self.figures["kills of a worker at work"] += bool(self._shards(name))
            self.workers.pop(name).end(signal.SIGKILL)
        time.sleep(self.rng.choice([0, 0, self.rng.uniform(0, 2)]))
        self._need_workers(3)

    def kill_broker(self) -> None:
        self._wait_for_commits(2)
        time.sleep(self.rng.uniform(0, 0.3))
        self.broker.kill()
        time.sleep(self.rng.uniform(0, 2))
        self.broker.start()
        self.figures["broker kills"] += 1

    def kill_postgres(self) -> None:
        self._wait_for_commits(2)
        time.sleep(self.rng.uniform(0, 0.3))
        self.postgres.kill()
        if self.figures["postgres kills"] % 2:
            self._come_and_go()
        time.sleep(self.rng.uniform(0, 4))
        self.postgres.start()
        self.figures["postgres kills"] += 1
        self._catch_up()

    def _come_and_go(self) -> None:
        """Two rebalances: a stranger joins the group, and leaves. Claims that wait for the database are overtaken."""
        stranger = kafka.KafkaConsumer(TOPIC, bootstrap_servers=self.broker.bootstrap, group_id="campaign")
        deadline = time.monotonic() + PATIENCE_S
        while not stranger.assignment() and time.monotonic() < deadline:
            stranger.poll(100)
        stranger.close()
        time.sleep(1.0)
        self.figures["rebalances while the database was away"] += 2

    def rebalance(self) -> None:
        """A worker joins, or leaves in an orderly way."""
        self._wait_for_commits(1)
        if len(self.workers) < MOST_WORKERS and (len(self.workers) < 3 or self.rng.random() < 0.5):
            name = self._start_worker()
            self._wait(lambda: bool(self._events(name, "claimed")), f"{name} to claim a shard")
        else:
            self._wait(lambda: any(map(self._shards, self.workers)), "a worker to have a shard")
            self._leave(self.rng.choice(sorted(filter(self._shards, self.workers))))
        self.figures["rebalances"] += 1

    def zombie(self, kind: str) -> None:
        """Stop a worker until others have claimed its shards, and wake it.

        `anywhere`: at a random instant. `commit`: between learning and commit. `epoch`: the same, and the others have
        claimed, but neither learned nor committed when it wakes; then nothing but its old epoch tells it from them.
        """
        self._need_workers(3)
        self._wait_for_commits(3)
        self._wait(self._settled, "every worker to have a shard")
        name = self.rng.choice(sorted(self.workers))
        process = self.workers[name]
        others = [self.workers[other] for other in self.workers if other != name]
        if kind == "anywhere":
            time.sleep(self.rng.uniform(0, 0.4))
            os.kill(process.pid, signal.SIGSTOP)
        else:
            os.kill(process.pid, signal.SIGUSR1)
            self._wait(lambda: _state(process) == "T", f"{name} to fall asleep")
            while not self._settled():  # in the middle of a rebalance: another time
                os.kill(process.pid, signal.SIGCONT)
                self._wait(self._settled, "every worker to have a shard")
                os.kill(process.pid, signal.SIGUSR1)
                self._wait(lambda: _state(process) == "T", f"{name} to fall asleep")
        if kind == "epoch":
            for other in others:
                os.kill(other.pid, signal.SIGUSR2)
        self._read_log()
        mark = len(self.log)
        epochs = self._shards(name)
        offsets = self._learned(name)
        if kind != "anywhere":
            asleep = self._events(name, "asleep")[-1]["parts"]
            assert all(epochs[int(p)] == part[0] for p, part in asleep.items())
        time.sleep(self.session_ms / 1000)
        taken_over = self._wait_for_new_owners(epochs, may_hold_them=kind == "anywhere")
        rows = {p: (epoch, seq, offset) for p, epoch, seq, offset in self._rows()}
        if kind == "epoch":
            self._read_log()
            assert all(rows[int(p)][1] == seq for p, (_, seq, _) in asleep.items()), "a new owner has committed"
        # What it has learned and not committed, of shards that are others' now.
        forfeit = {
            p for p in taken_over if offsets.get(p, 0) > self._sql_one(
                "SELECT coalesce(max((position::json->>'offset')::bigint), 0) FROM audit"
                f" WHERE partition = {p} AND epoch <= {epochs[p]} AND seq > 0"
            )
        }  # fmt: skip
        os.kill(process.pid, signal.SIGCONT)
        if kind != "anywhere":
            assert forfeit >= {int(p) for p in asleep} > set()
            self._wait(lambda: self._has(name, mark, "fenced"), f"{name} to be fenced")
            self.figures["zombies fenced at their commit"] += 1
            self.figures["zombies fenced by the epoch alone"] += kind == "epoch"
        else:
            self.figures["zombies that had learned more than they had committed"] += bool(forfeit)
        if kind == "epoch":
            for _ in range(2):  # once more for one that was about to fall asleep
                for other in others:
                    os.kill(other.pid, signal.SIGHUP)
                    os.kill(other.pid, signal.SIGCONT)
                time.sleep(0.2)
        self._wait(lambda: self._has(name, mark, "claimed"), f"{name} to join the group again")
        self._check_forfeit(name, mark, forfeit)
        self.figures["zombies"] += 1

    def late_claim(self) -> None:
        """A claim that was under way when its worker lost the shard reaches the database now: its owner must see."""
        self._catch_up()
        with Store(self.postgres.url, JOB, FINGERPRINT, cap=PureDP(CAP), key=self.key, shared=True) as store:
            store.claim([Shard(TOPIC, self.rng.randrange(PARTITIONS))])
        time.sleep(0.5)
        self._catch_up()
        self.figures["late claims"] += 1

    def _wait_for_new_owners(self, epochs: dict[int, int], may_hold_them: bool) -> set[int]:
        """The shards that others have claimed by now: all, unless the zombie sleeps within a transaction."""
        taken: set[int] = set()

        def all_taken() -> bool:
            taken.clear()
            taken.update(p for p, epoch, _, _ in self._rows() if epoch > epochs.get(p, 1 << 60))
            return taken == set(epochs)

        try:
            self._wait(all_taken, "the zombie's shards to be claimed", 20.0 if may_hold_them else PATIENCE_S)
        except TimeoutError:
            if not may_hold_them:
                raise
            idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            assert self._sql_one(idle) > 0, "a zombie's shards were not claimed"
            self.figures["zombies asleep in a transaction"] += 1
        return taken

    def _check_forfeit(self, name: str, mark: int, forfeit: set[int]) -> None:
        """What the zombie had not committed of shards that others have claimed was refused or dropped, never saved."""
        said: dict[int, str] = {}
        for event in self.log[mark:]:
            if event["who"] != name:
                continue
            for p in forfeit - set(said):
                what = event["what"]
                if (
                    (what == "fenced" and f"{TOPIC}/{p} " in event["message"])
                    or (what in ("lost", "revoked") and p in event["partitions"])
                    or (what == "committed" and str(p) in event["parts"])
                ):
                    said[p] = what
        assert set(said) == forfeit, "what a zombie had learned is neither refused nor dropped"
        assert "committed" not in said.values(), "what a zombie had learned was committed"
        for what in said.values():
            self.figures[f"forfeited shards: {what}"] += 1

    # -- workers -----------------------------------------------------------------------------------------------------

    def _start_worker(self) -> str:
        self._started += 1
        name = f"w{self._started}"
        command = [sys.executable, str(PROGRAM), self.broker.bootstrap, TOPIC, str(self.session_ms), self.client]
        command += [self.postgres.url, str(self.log_file), name]
        self.workers[name] = Process(command, self.folder / f"{name}.log", env=self.environment)
        return name

    def _need_workers(self, number: int) -> None:
        while len(self.workers) < number:
            self._start_worker()

    def _leave(self, *names: str) -> None:
        leaving = {name: self.workers.pop(name) for name in names}
        for process in leaving.values():
            os.kill(process.pid, signal.SIGTERM)
        try:
            self._wait(lambda: not any(process.running for process in leaving.values()), f"{names} to leave")
        finally:
            for process in leaving.values():
                process.end(signal.SIGTERM)
        self._read_log()
        for name, process in leaving.items():
            said = [event["what"] for event in self.log if event["who"] == name]
            assert "left" in said or "claimed" not in said, f"{name} left after {said[-5:]}:\n{process.output()}"

    def _check_alive(self) -> None:
        """No worker ends by itself, unless a server was away before it had begun."""
        for name, process in list(self.workers.items()):
            if process.running:
                continue
            del self.workers[name]
            process.end(signal.SIGKILL)
            self._read_log()
            said = [event["what"] for event in self.log if event["who"] == name]
            allowed = "claimed" not in said and said[-1:] == ["unavailable"]
            assert allowed, f"{name} ended by itself after {said[-5:]}:\n{process.output()}"
            self.figures["workers that found no server"] += 1
            self._start_worker()

    def _shards(self, name: str) -> dict[int, int]:
        """What the worker has claimed and not given up, by its own log, with the epochs."""
        self._read_log()
        mine: dict[int, int] = {}
        for event in self.log:
            if event["who"] != name:
                continue
            match event["what"]:
                case "claimed":
                    mine |= {int(p): epoch for p, epoch in event["epochs"].items()}
                case "lost" | "revoked":
                    mine = {p: epoch for p, epoch in mine.items() if p not in event["partitions"]}
        return mine

    def _settled(self) -> bool:
        """Whether every worker has a shard, and every shard a worker that knows its epoch."""
        held = [self._shards(name) for name in self.workers]
        known = sorted(pair for shards in held for pair in shards.items())
        return all(held) and known == [(partition, epoch) for partition, epoch, _, _ in self._rows()]

    def _learned(self, name: str) -> dict[int, int]:
        """Up to where the worker has learned its shards."""
        offsets: dict[int, int] = {}
        for event in self.log:
            if event["who"] == name:
                if event["what"] == "learned":
                    offsets[event["partition"]] = event["offset"]
                elif event["what"] in ("fenced", "conflict", "claimed"):
                    offsets = {}
        return offsets

    def _events(self, name: str, what: str) -> list[dict[str, Any]]:
        self._read_log()
        return [event for event in self.log if event["who"] == name and event["what"] == what]

    def _has(self, name: str, mark: int, what: str) -> bool:
        self._read_log()
        return any(event["who"] == name and event["what"] == what for event in self.log[mark:])

    def _count(self, what: str) -> int:
        self._read_log()
        return sum(event["what"] == what for event in self.log)

    def _read_log(self) -> None:
        with self.log_file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        self.log += map(json.loads, data.splitlines())

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool], name: str, patience: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience
        while not done():
            self._check_alive()
            if time.monotonic() > deadline:
                owners = {worker: self._shards(worker) for worker in self.workers}
                raise TimeoutError(f"waited {patience:g} s for {name}: {owners}, committed {self._rows()}")
            time.sleep(0.03)

    def _wait_for_commits(self, number: int) -> None:
        goal = self._count("committed") + number
        self._wait(lambda: self._count("committed") >= goal, "a commit")

    def _catch_up(self) -> None:
        """Wait until the workers have committed all that there is now: no shard is left alone."""
        began = time.monotonic()
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.broker.bootstrap)
        ends = consumer.end_offsets([kafka.TopicPartition(TOPIC, p) for p in range(PARTITIONS)])
        consumer.close()
        goal = {place.partition: end for place, end in ends.items()}
        self._wait(lambda: all(dict(self._offsets()).get(p, 0) >= goal[p] for p in goal), f"{goal} to be committed")
        self.longest_catch_up = max(self.longest_catch_up, time.monotonic() - began)

    # -- the database ------------------------------------------------------------------------------------------------

    def _sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.postgres.url, autocommit=True, options="-c search_path=streamdp") as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _sql_one(self, statement: str) -> Any:
        return self._sql(statement)[0][0]

    def _rows(self) -> list[tuple[int, int, int, int]]:
        offset = "coalesce((nullif(position, '')::json->>'offset')::bigint, 0)"
        return self._sql(f"SELECT partition, epoch, seq, {offset} FROM shards ORDER BY partition")

    def _offsets(self) -> list[tuple[int, int]]:
        return [(partition, offset) for partition, _, _, offset in self._rows()]

    # -- the end -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything at rest."""
        messages = read_topic(self.broker.bootstrap)
        replay = Replay(messages)
        in_topic = sum(map(len, messages.values()))
        assert in_topic == len(self.feed.sent)
        assert Counter((m.key, m.value) for stream in messages.values() for m in stream) == Counter(
            (m.key, m.value) for m, _ in self.feed.sent
        )
        self.check_history(replay)
        snapshots = Store.snapshots(self.postgres.url, JOB)
        assert [s.shard.partition for s in snapshots] == list(range(PARTITIONS))
        total = Counts()
        for snapshot in snapshots:
            p, counts = snapshot.shard.partition, snapshot.counts
            assert snapshot.position["offset"] == len(messages[p])
            assert counts == replay.counts[p][-1]
            assert snapshot.state["n_seen"] == counts.learned
            assert np.array_equal(snapshot.state["state"], replay.state(p, counts.learned))
            total = Counts(total.learned + counts.learned, total.refused + counts.refused, total.dead + counts.dead)
        assert total.learned + total.refused + total.dead == in_topic
        assert min(total.learned, total.refused, total.dead) > in_topic // 200
        self.check_spends(replay)
        names = ("committed", "fenced", "conflict", "store", "source", "lost", "revoked", "claimed")
        self.figures.update({f"log: {name}": self._count(name) for name in names})
        self.figures.update(messages=in_topic, learned=total.learned, refused=total.refused, dead=total.dead)

    def check_history(self, replay: Replay) -> None:
        """Every claim and every commit that ever was."""
        columns = "partition, epoch, seq, learned, refused, dead, position"
        now: dict[int, tuple[int, int, int]] = {}
        commits: dict[tuple[int, int], list[int]] = {}
        for p, epoch, seq, learned, refused, dead, position in self._sql(f"SELECT {columns} FROM audit ORDER BY id"):
            old_epoch, old_seq, old_offset = now.get(p, (0, 0, 0))
            offset = json.loads(position)["offset"] if position else 0
            if epoch == 0:
                continue  # the row is made, to be claimed next
            if seq == old_seq:  # a claim
                assert (epoch, offset) == (old_epoch + 1, old_offset)
            else:
                assert (epoch, seq) == (old_epoch, old_seq + 1)
                assert offset > old_offset or (seq, offset) == (1, 0)  # the first says where it began
                commits[p, seq] = [epoch, seq - 1, offset]
            counts = Counts(learned, refused, dead)
            assert counts == replay.counts[p][offset], f"{TOPIC}/{p} at {offset}, commit {seq} under epoch {epoch}"
            now[p] = (epoch, seq, offset)
        claimed: set[tuple[int, int]] = set()
        for event in self.log:
            if event["what"] == "committed":  # nobody believes to have committed what another one did
                for p, part in event["parts"].items():
                    assert commits[int(p), part[1] + 1] == part
            elif event["what"] == "claimed":
                for p, epoch in event["epochs"].items():
                    assert (int(p), epoch) not in claimed
                    assert epoch <= now[int(p)][0]
                    claimed.add((int(p), epoch))
        assert self._sql_one("SELECT count(*) FROM commits") == len(commits)
        self.figures["commits of a shard"] = len(commits)
        self.figures["claims of a shard"] = sum(epoch for epoch, _, _ in now.values())

    def check_spends(self, replay: Replay) -> None:
        """Each subject has spent what the replay says, and none more than its cap."""
        rows = self._sql("SELECT subject, spend FROM spends")
        ledger = {bytes(subject): struct.unpack("<6d", spend)[0] for subject, spend in rows}
        spent = {subject: total for subject, total in replay.spent.items() if total}
        hashes, _ = hash_subjects(list(spent), self.key)
        expected = {one.tobytes(): total for one, total in zip(hashes, spent.values(), strict=True)}
        assert ledger == expected
        assert max(ledger.values()) <= CAP * (1 + 1e-9)
        self.figures["subjects"] = len(ledger)
        self.figures["subjects at their cap"] = sum(spent > CAP - 0.1 for spent in ledger.values())


def _state(process: Process) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def _line(figures: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in figures.items())


def campaign(
    kills: int,
    broker_kills: int,
    postgres_kills: int,
    rebalances: int,
    zombies: int,
    seed: int,
    *,
    folder: Path,
    session_ms: int = 6000,
    rate: float = 200,
    client: str = "kafka-python",
) -> dict[str, int]:
    """Run it with events in random order, and return its figures."""
    run = Campaign(folder, seed, session_ms, rate, client)
    bursts = []
    while kills:
        bursts.append(min(kills, run.rng.choice([1, 1, 2, 3])))
        kills -= bursts[-1]
    kinds = (("epoch", "commit", "anywhere") * zombies)[:zombies]
    events: list[Callable[[], None]] = [lambda n=n: run.kill(n) for n in bursts]
    events += [run.kill_broker] * broker_kills + [run.kill_postgres] * postgres_kills + [run.rebalance] * rebalances
    events += [lambda kind=kind: run.zombie(kind) for kind in kinds]
    events += [run.late_claim] * zombies
    run.rng.shuffle(events)
    run.run(events, catch_up_every=8)
    figures = dict(run.figures) | {"longest seconds to catch up": round(run.longest_catch_up)}
    print("\n" + "\n".join(f"{name}: {number}" for name, number in figures.items()))
    return figures


PAGE = ROOT / "benchmarks" / "campaign.md"
ABOUT = """# The kill campaign

`python -m tests.campaigns.test_kafka_campaign --write` kills and freezes workers, kills Kafka and PostgreSQL, forces
rebalances
while a topic is read, and then compares every commit, count, state and spend with a plain replay of what was produced.
It passes only where every offset was counted exactly once and no subject is over its cap. These are its figures.
"""
CLIENTS = ("kafka-python", "confluent")
FAST: dict[str, Any] = {"kills": 2, "broker_kills": 1, "postgres_kills": 1, "rebalances": 1, "zombies": 1, "seed": 1}
FULL: dict[str, Any] = {
    "kills": 100,
    "broker_kills": 10,
    "postgres_kills": 10,
    "rebalances": 20,
    "zombies": 5,
    "seed": 2,
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGSTOP and /proc")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_few_of_each(tmp_path: Path, client: str) -> None:
    figures = campaign(**FAST, folder=tmp_path, session_ms=2000, rate=500, client=client)
    assert figures["zombies fenced by the epoch alone"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs SIGSTOP and /proc")
def test_a_hundred_kills(tmp_path: Path) -> None:
    figures = campaign(**FULL, folder=tmp_path)
    assert figures["messages"] > 20_000
    assert figures["zombies fenced by the epoch alone"] >= 1
    assert figures["log: conflict"] > 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.test_kafka_campaign", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a few of each only")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--client", choices=CLIENTS, default=CLIENTS[0])
    parser.add_argument("--write", action="store_true", help="replace benchmarks/campaign.md")
    given = parser.parse_args()
    size = dict(FAST if given.fast else FULL) | {"client": given.client}
    if given.seed is not None:
        size["seed"] = given.seed
    with tempfile.TemporaryDirectory(prefix="streamdp-campaign-") as folder:
        figures = campaign(**size, folder=Path(folder), **({"session_ms": 2000, "rate": 500} if given.fast else {}))
    if given.write:
        rows = "".join(f"| {name} | {number:,} |\n" for name, number in figures.items())
        PAGE.write_text(f"{ABOUT}\n| what | how many |\n| --- | --- |\n{rows}", encoding="utf-8")


if __name__ == "__main__":
    main()
