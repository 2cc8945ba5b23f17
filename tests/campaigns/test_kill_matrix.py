"""Every kind of job under every kind of fault, from a file and from Kafka, into SQLite and PostgreSQL.

The input is made here, and counted here in plain Python with nothing of the library. After each fault every new commit
must show the numbers of the records before its position, and whatever a job of a file printed or published must have
been committed; at the end every record is counted once, no subject is over its cap, each bad record has one dead
letter, and the doubt of a public holdout is that of the last commit. After a fault of a server or of a connection a
worker must commit again before it is killed: one that stalls fails the test. What a local model learned and refused,
and what its people spent, is known exactly. For the other kinds the faults decide where batches end, so that there only
sums and caps are exact.

`python -m tests.campaigns.test_kill_matrix --write` runs until 1,000 faults are in benchmarks/campaign.jsonl, and
writes benchmarks/campaign.md. Each stream that has ended is a line of that file, so that a run may be interrupted.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from connectors.kafkasink import read_topic
from servers.broker import Broker, create_topic
from streamdp.config.job import load_config
from streamdp.data.records import WHOLE, Shard
from streamdp.data.subjects import subjects_bytes
from streamdp.serving.holdout import WORSE, Holdout
from streamdp.serving.publish import committed
from streamdp.store.snapshot import Counts
from streamdp.store.store import HISTORY, Store
from tests.support.commands import environment
from tests.support.matrix_servers import FragileServers, SharedServers
from tests.support.paths import ROOT
from tests.support.proxy import Proxy
from tests.support.schemas import in_schema
from tests.support.sizes import some
from tests.support.zygote import Forked

PARTITIONS = 2
RECORDS_OF_A_PERSON = 3
PEOPLE_AT_ONCE = 200  # so few that a window's people soon have two records each
RECORDS_OF_A_USER, LEAST_USERS = 2, 5  # in a window
RECORDS_TO_A_BATCH = 300  # so many fill a batch or a window of one of the partitions
PATIENCE_S = 300.0  # no run waits so long unless something is wrong
KEY = "5a" * 32
FETCHES = {"max_partition_fetch_bytes": 1500, "fetch_max_bytes": 3000}
CLIENTS = ("kafka-python", "confluent")
KINDS = {
    "LDP": "estimator: LDPASGDClassifier, budget: eps=1",
    "pan-private": 'estimator: PanPrivateClassifier, budget: "eps=8,delta=1e-6", batch_size: 40',
    "user-level": 'estimator: UserLevelLDPClassifier, budget: "eps=8,delta=1e-6", items_per_user: 2, window: 60',
    "windowed": 'estimator: WindowedClassifier, budget: "eps=8,delta=1e-6", items_per_user: 2, window: 60, '
    "method: private-range",
    "shuffled": 'estimator: ShuffleClassifier, budget: "eps=8,delta=1e-6", batch_size: 40',
    "LDP statistics": "trust: nobody, budget: eps=1",
    "pan-private statistics": 'trust: process, budget: "eps=8,delta=1e-6", batch_size: 40',
    "windowed statistics": "trust: window, budget: eps=8, batch_size: 40",
    "shuffled statistics": 'trust: shuffler, budget: "eps=8,delta=1e-6", batch_size: 40',
    "pan-private with statistics": 'estimator: PanPrivateClassifier, budget: "eps=8,delta=1e-6", batch_size: 40',
}
"""The model of a job, or the trust of its statistics, or a model with statistics beside it."""
EXACT = ("LDP", "LDP statistics")
"""What these learn and refuse does not depend on where batches end."""
CAPS = {kind: "eps=3" if kind in EXACT else "eps=24,delta=1e-4" for kind in KINDS}
CAPS["windowed statistics"] = "eps=24"
FAULTS = {
    "kill": ("sqlite", "postgresql", "file", "kafka"),
    "stop": ("sqlite", "postgresql", "file", "kafka"),
    "clock jump": ("sqlite", "postgresql", "file", "kafka"),
    "full disk": ("sqlite", "file", "kafka"),
    "database cut at a commit": ("postgresql", "file", "kafka"),
    "database cut": ("postgresql", "file", "kafka"),
    "brokers cut": ("sqlite", "postgresql", "kafka"),
    "database killed": ("postgresql", "file", "kafka"),
    "standby takes over": ("postgresql", "file", "kafka"),
    "leader lost": ("sqlite", "postgresql", "kafka"),
    "brokers killed": ("sqlite", "postgresql", "kafka"),
}
"""Where each fault can happen."""
OF_PROCESSES = ("kill", "stop", "clock jump", "full disk")
OF_SERVERS = ("database killed", "standby takes over", "leader lost", "brokers killed")
WEIGHTS = {"kill": 10, "stop": 3, **dict.fromkeys(OF_SERVERS, 1)}
"""How often, if not 2."""
PER_STREAM = 16
"""The most faults before a stream is read to its end and checked."""
Which = tuple[str, str, str]
"""The kind of job, the store, the source."""
CELLS: list[Which] = list(itertools.product(KINDS, ("sqlite", "postgresql"), ("file", "kafka")))

JOB = """job: {job}
source: {source}
schema:
  features: {{a: [-1, 1], b: [x, y]}}
  subject: person
{more}model: {{{model}}}
cap: "{cap}"
commit: {{records: {records}, seconds: 0.05}}
{publish}store: {store}
"""
TARGET = '  target: {column: y, classes: ["0", "1"]}\n'
HOLDOUT = "holdout: public.csv\n"
STATISTICS = "statistics: {people: {count: b}, mean: {mean: a, by: b}}\n"


class Entry(NamedTuple):
    """A record: the position after it, and whose it is; None for a bad one."""

    position: int
    person: str | None


class Cell:
    """A job of one kind over one stream, from its first record to its last, with faults in between."""

    def __init__(
        self, folder: Path, servers: SharedServers, kind: str, store: str, source: str, *, seed: int, rows: int
    ) -> None:
        self.folder, self.servers, self.kind, self.store, self.source = folder, servers, kind, store, source
        self.rng = random.Random(seed)
        self.transactional = source == "kafka" and seed % 2 == 1
        self.secure = seed % 4 >= 2
        self.topic = self.job = f"cell-{uuid.uuid4().hex[:12]}"
        self.letters: str | None = None
        self.at = str(folder / "cell.db")
        if store != "sqlite":
            self.at = in_schema(servers.database(self.secure), self.job)
        self.done: Counter[str] = Counter()
        self.commits = 0
        self._seen: dict[Shard, int] = {}
        self._counts: dict[int, Counts] = {}
        folder.mkdir(parents=True)
        public = "".join(f"{i / 50 - 1},{'xy'[i % 2]},{i // 3 % 2}\n" for i in range(99))
        (folder / "public.csv").write_text(f"a,b,y\n{public}")
        self._make_input(rows)
        self._replay()

    # --- the input, and what it amounts to

    def _make_input(self, rows: int) -> None:
        records: list[tuple[str | None, dict[str, str]]] = []
        for i in range(rows):
            bad, person = self.rng.random() < 0.03, f"p{i // 8 + self.rng.randrange(min(PEOPLE_AT_ONCE, rows // 6))}"
            fields = {"a": f"{self.rng.uniform(-1, 1):.3f}", "b": self.rng.choice("xy")}
            fields |= {"y": str(self.rng.randrange(2)), "person": person}
            if bad:
                fields[self.rng.choice("ab")] = "n/a"
            records.append((None if bad else person, fields))
        if self.source == "file":
            lines = ["a,b,y,person", *(",".join(fields.values()) for _, fields in records)]
            (self.folder / "stream.csv").write_text("\n".join(lines) + "\n")
            self.input = {WHOLE: [Entry(i + 2, person) for i, (person, _) in enumerate(records)]}
        else:
            self._left, self._chunk = (
                records,
                max(rows // (2 * PER_STREAM), 0 if self.kind in EXACT else RECORDS_TO_A_BATCH),
            )
            self._make_topic()

    def _make_topic(self) -> None:
        """In every second run, a compacted one, where each message has a key of its own."""
        config = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
        bootstrap = self.servers.bootstrap
        create_topic(bootstrap, self.topic, PARTITIONS, config if self.transactional else None)
        options: dict[str, Any] = {"bootstrap.servers": bootstrap, "linger.ms": 1, "batch.num.messages": 20}
        options["enable.idempotence"] = True  # else a lost broker may leave a record twice
        if self.transactional:
            options["transactional.id"] = self.topic
        self._producer = confluent_kafka.Producer(options)
        if self.transactional:
            self._producer.init_transactions()
        self.input = {Shard(self.topic, p): [] for p in range(PARTITIONS)}

    def send(self, count: int) -> None:
        """Send so many of the remaining records to the topic: a subject's records in one partition. In every second
        run, in transactions of which some are aborted."""
        records, self._left = self._left[:count], self._left[count:]
        producer = self._producer

        def send(records: list[tuple[str | None, dict[str, str]]], kept: bool) -> None:
            def heard(person: str | None) -> Any:
                def note(error: object, message: Any) -> None:
                    assert error is None, error
                    if kept:
                        self.input[Shard(self.topic, message.partition())].append(Entry(message.offset() + 1, person))

                return note

            for person, fields in records:
                partition = sum(fields["person"].encode()) % PARTITIONS
                key = uuid.UUID(int=self.rng.getrandbits(128)).bytes
                value = json.dumps(fields).encode()
                producer.produce(self.topic, value, key, partition=partition, on_delivery=heard(person))
            producer.flush()

        for start in range(0, len(records), 40 if self.transactional else 400):
            some = records[start : start + (40 if self.transactional else 400)]
            if not self.transactional:
                send(some, True)
                continue
            if self.rng.random() < 0.2:
                producer.begin_transaction()
                send(some[:10], False)
                producer.abort_transaction()
            producer.begin_transaction()
            send(some, True)
            producer.commit_transaction()
        for entries in self.input.values():
            entries.sort()
        self._replay()

    def _replay(self) -> None:
        """Counts before each position: exact for a local model, for the others of good and bad records."""
        self.before: dict[Shard, dict[int, Counts]] = {}
        self.spent: Counter[str] = Counter()
        for shard, entries in self.input.items():
            outcomes = []
            for entry in entries:
                fits = entry.person is not None and (
                    self.kind not in EXACT or self.spent[entry.person] < RECORDS_OF_A_PERSON
                )
                if fits and entry.person is not None:
                    self.spent[entry.person] += 1
                outcomes.append((fits, entry.person is not None and not fits, entry.person is None))
            sums = accumulate(outcomes, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), initial=(0, 0, 0))
            places = [entries[0].position - 1 if entries else 0, *(entry.position for entry in entries)]
            self.before[shard] = {place: Counts(*map(int, c)) for place, c in zip(places, sums, strict=True)}

    def expected(self, shard: Shard, position: int) -> Counts:
        """The counts of the records before a position, which may also lie between records."""
        known = self.before[shard]
        if position not in known:
            position = max((place for place in known if place <= position), default=min(known))
        return known[position]

    # --- runs and faults

    def start(self, records: int, *arguments: str, fetches: Mapping[str, int] = FETCHES, **more: str) -> Forked:
        source = "{path: stream.csv, max_bad_share: 0.5, dead_letters: dead.jsonl}"
        if self.source == "kafka":
            if self.letters is None:
                self.letters = "dead_letters: dead.jsonl"
                if not self.transactional:
                    create_topic(self.servers.bootstrap, f"{self.topic}-dead", 2)
                    self.letters = f"dead_letter_topic: {self.topic}-dead"
            source = (
                f"{{type: kafka, topic: {self.topic}, subject_from: value, {self.letters}, max_bad_in_a_row: null, "
                "max_bad_share: null, "
                f"client: {self.rng.choice(CLIENTS)}, "
                f"options: {json.dumps({**fetches, **self.servers.options(self.secure)})}}}"
            )
        text = JOB.format(
            job=self.job,
            source=source,
            more=TARGET * ("estimator" in KINDS[self.kind]) + STATISTICS * ("statistics" in self.kind),
            model=KINDS[self.kind],
            cap=CAPS[self.kind],
            records=records,
            publish="publish: model.json\n" * (self.source == "file") + HOLDOUT * ("estimator" in KINDS[self.kind]),
            store=self.at,
        )
        (self.folder / "job.yaml").write_text(text)
        more |= {"STREAMDP_SUBJECT_KEY": KEY, "KAFKA_PASSWORD": Broker.password}
        given = environment(self.servers.brokers(self.secure), **more)
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            return Forked(["run", "job.yaml", *arguments], cwd=self.folder, env=given, stdout=out, stderr=err)

    def run(self, faults: int) -> None:
        """Read the stream to its end with at most so many faults, and check everything."""
        for _ in range(faults):
            if not self.strike():
                break
        self.finish()

    def strike(self) -> bool:
        """Run until a random instant, and let a fault happen; returns whether it came before the end of the stream."""
        here = {self.store, self.source}
        possible = [f for f, at in FAULTS.items() if here <= set(at) and (f in OF_PROCESSES or self.servers.may(f))]
        fault = self.rng.choices(possible, [WEIGHTS.get(fault, 2) for fault in possible])[0]
        more = {"TESTS_CLOCK_SECONDS": str(self.rng.choice([-86_400, -3, 3, 86_400]))} if fault == "clock jump" else {}
        if fault == "full disk":
            sizes = [path.stat().st_size for path in self.folder.glob("cell.db*")]
            more["TESTS_FILE_BYTES"] = str(max(200_000, *sizes, 0) + self.rng.randrange(100_000))
        if self.source == "kafka":
            if not self._left:
                return False
            self.send(self._chunk)
        process = self.start(self.rng.choice([1, 2, 4]), **more)
        try:
            self._wait(process, self.rng.random() < 0.25)
            if process.poll() == 0:
                return False
            self.done[self._do(fault, process)] += 1
        finally:
            for proxy in (*self.servers.to_database, *self.servers.to_brokers):
                proxy.spare()
            process.kill()
            process.wait()
        said = (self.folder / "err").read_text()
        assert "Traceback" not in said, said
        self.check()
        return True

    def _wait(self, process: Forked, early: bool) -> None:
        """To a random instant of the start, or after the first commit of this run."""
        if not early:
            if self.source == "kafka" and self.kind not in EXACT:
                self._fill_batches(process, 0)  # people over their cap fill none
            else:
                self._until(process, self._commits)
        time.sleep(self.rng.uniform(0, 0.6))

    def _until(self, process: Forked, happened: Callable[[], object]) -> None:
        """Wait for something, or for the end of the process."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened() and process.poll() is None:
            assert time.monotonic() < deadline, "it stalls: " + (self.folder / "err").read_text()
            time.sleep(0.02)

    def _do(self, fault: str, process: Forked) -> str:
        """Let a fault happen; returns which one did: a disk that was not full, or a connection that was not cut, is a
        mere kill."""
        if fault in OF_SERVERS:
            assert isinstance(self.servers, FragileServers)
            self.servers.strike(fault, self.topic, self.rng, lambda: self._goes_on(process))
            self._goes_on(process)
        elif fault in OF_PROCESSES:
            fault = self._disturb(fault, process)
        elif self._cut(fault, process):
            self._goes_on(process)
        else:
            fault = "kill"
        process.kill()
        process.wait()
        return fault

    def _disturb(self, fault: str, process: Forked) -> str:
        match fault:
            case "stop":
                process.terminate()
                code = process.wait(PATIENCE_S)  # the third: before the command has begun
                # 3: its first records did not fit the schema.
                assert code in (0, 3, 143, -signal.SIGTERM), (code, (self.folder / "err").read_text())
            case "clock jump":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
                time.sleep(0.3)
            case "full disk":
                time.sleep(0.5)
                if process.poll() is None:  # it had room enough
                    return "kill"
        return fault

    def _cut(self, fault: str, process: Forked) -> bool:
        """Cut connections at a commit, which TLS hides, or after some bytes; returns whether one was cut."""
        proxies = self.servers.to_brokers if fault == "brokers cut" else self.servers.to_database
        before = sum(proxy.cuts for proxy in proxies)
        for proxy in proxies:
            if fault == "database cut at a commit" and not self.secure:
                proxy.cut_at(b"COMMIT", forward=self.rng.random() < 0.5)
            else:
                proxy.cut_after(self.rng.randrange(20_000))
        moment = time.monotonic() + 2.0  # a job that has come to its end sends nothing
        self._until(process, lambda: sum(p.cuts for p in proxies) > before or time.monotonic() > moment)
        return sum(proxy.cuts for proxy in proxies) > before

    def _goes_on(self, process: Forked) -> None:
        """Wait until a worker has committed new records: all that there are now, or those of batches that they fill.
        A job that reads a file must commit again, or end, at the end of the file or with an error that says that the
        database does not answer."""
        before = len(self._commits())
        if self.source == "kafka":
            self.send(self._chunk)
            ends = {str(shard): entries[-1].position for shard, entries in self.input.items() if entries}
            if self.kind in EXACT:
                self._until(process, lambda: all(self._offsets().get(shard, 0) >= end for shard, end in ends.items()))
            else:
                self._fill_batches(process, before)
            assert process.poll() is None, (self.folder / "err").read_text()
        else:
            self._until(process, lambda: len(self._commits()) > before)
            said = (self.folder / "err").read_text()
            assert process.poll() in (None, 0) or "does not answer" in said, said

    def _fill_batches(self, process: Forked, before: int) -> None:
        """Send records until a batch or a window is full and committed; at the end of the stream, none may be."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self._commits()) == before and self._left and process.poll() is None:
            moment = time.monotonic() + 5.0
            self._until(process, lambda moment=moment: len(self._commits()) > before or time.monotonic() > moment)
            if len(self._commits()) == before:
                self.send(self._chunk)
            assert time.monotonic() < deadline, "it stalls: " + (self.folder / "err").read_text()

    def _commits(self) -> list[dict[str, Any]]:
        """The events of commits in the present run."""
        lines = (self.folder / "out").read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if b'"commit"' in line and line.endswith(b"\n")]

    def _offsets(self) -> dict[str, int]:
        """Up to where the present run has committed."""
        found: dict[str, int] = {}
        for event in self._commits():
            found |= {shard: now["position"]["offset"] for shard, now in event["shards"].items()}
        return found

    # --- what must hold

    def check(self) -> None:
        """Every new commit shows the numbers of the records before its position."""
        if self.store == "sqlite" and not Path(self.at).exists():
            return
        try:
            commits = Store.history(self.at, HISTORY, self.job)
        except Exception as error:
            if "no such schema" in str(error) or "holds no job" in str(
                error
            ):  # the first run died before it made its store
                return
            raise
        for commit in commits:
            if commit.seq <= self._seen.get(commit.shard, 0):
                continue
            self._same(commit.counts, self.expected(commit.shard, self._place(commit.position)))
            self._counts[commit.seq] = commit.counts
            self.commits += 1
        for commit in commits:
            self._seen[commit.shard] = max(commit.seq, self._seen.get(commit.shard, 0))
        if self.source == "file":
            for event in self._commits():
                counts = self._counts[event["commit"]]
                assert (event["learned"], event["refused"]) == (counts.learned, counts.refused)
            if (published := self.folder / "model.json").exists():
                shown = json.loads(published.read_text())
                assert Counts(**shown["counts"]) == self._counts[shown["commit"]]

    def _place(self, position: dict[str, Any]) -> int:
        return position["offset"] if self.source == "kafka" else max(1, position["row"])

    def _same(self, found: Counts, expected: Counts) -> None:
        if self.kind in EXACT:
            assert found == expected
        else:
            good = expected.learned + expected.refused + expected.left_out
            assert (found.learned + found.refused + found.left_out, found.dead_letters) == (good, expected.dead_letters)

    def finish(self) -> None:
        """Run to the end without a fault, and check everything."""
        if self.source == "kafka":
            self.send(len(self._left))
        deadline, before = time.monotonic() + PATIENCE_S, dict[Shard, int]()
        while True:  # on a busy machine, a worker may have been idle for three seconds before the end
            process = self.start(500, *(("--idle-seconds", "3") if self.source == "kafka" else ()), fetches={})
            assert process.wait(PATIENCE_S) == 0, (self.folder / "err").read_text()
            self.check()
            snapshots = {s.shard: s for s in Store.snapshots(self.at, self.job)}
            places = {shard: self._place(snapshot.position) for shard, snapshot in snapshots.items()}
            few = self.kind == "windowed" and any(s.waiting for s in snapshots.values()) and self._few_left(places)
            ends = {s: places.get(s, 0) if few else entries[-1].position for s, entries in self.input.items()}
            last = {shard: entries[-1].position for shard, entries in self.input.items()}
            if all(places.get(shard, -1) >= end for shard, end in ends.items()) and (ends == last or places == before):
                break
            before = places
            assert time.monotonic() < deadline, ({s: x.position for s, x in snapshots.items()}, ends)
        for shard, end in ends.items():
            self._same(snapshots[shard].counts, self.expected(shard, end))
        learned = sum(s.counts.learned for s in snapshots.values())
        assert sum(s.state["n_seen"] for s in snapshots.values() if s.state) == learned
        if "statistics" in self.kind:  # false alarms: 1e-9 a number
            limits = committed(self.at, self.job).estimator.estimated.interval(1 - 1e-9)["people"].values()
            assert sum(low for low, _ in limits) <= learned <= sum(high for _, high in limits)
        self._check_letters(ends)
        self._check_spends(learned)

    def _few_left(self, places: Mapping[Shard, int]) -> bool:
        """Whether too few users for a window have records after these places. They wait, as the store says."""
        after = [e for shard, entries in self.input.items() for e in entries if e.position > places.get(shard, -1)]
        left = Counter(e.person for e in after if e.person is not None)
        return sum(records >= RECORDS_OF_A_USER for records in left.values()) < LEAST_USERS

    def _check_letters(self, ends: Mapping[Shard, int]) -> None:
        letters = (self.folder / "dead.jsonl").read_text().splitlines() if self.letters is None else self._letters()
        found = [json.loads(text) for text in letters]
        places = Counter((item.get("partition", 0), item.get("offset", item.get("position"))) for item in found)
        after = 0 if self.source == "file" else 1
        bad = {
            (s.partition, e.position - after): e.position <= ends[s]
            for s, entries in self.input.items()
            for e in entries
            if e.person is None
        }
        missing = [place for place, due in bad.items() if due and place not in places]
        assert not missing, missing[:3]  # those after a window that stays open may be written: the next run finds them
        # A broker that fails may add letters to its topic after the worker has looked for them.
        failed = sum(n for name, n in self.done.items() if name.startswith(("brokers", "leader")))
        most = failed if self.letters is not None and "topic" in self.letters else 0
        assert max(places.values(), default=1) <= 1 + most, places.most_common(3)
        assert not places.keys() - bad.keys(), places.keys() - bad.keys()

    def _letters(self) -> list[str]:
        if self.letters == "dead_letters: dead.jsonl":
            return (self.folder / "dead.jsonl").read_text().splitlines()
        return [value.decode() for value in read_topic(self.servers.bootstrap, f"{self.topic}-dead", {})]

    def _check_spends(self, learned: int) -> None:
        records = Counter(e.person for entries in self.input.values() for e in entries if e.person is not None)
        people = sorted(records)
        # Batches refuse some records, but a job that refuses nearly all has a defect.
        assert 4 * learned >= sum(min(number, RECORDS_OF_A_PERSON) for number in records.values())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STREAMDP_SUBJECT_KEY", KEY)
            patch.setenv("KAFKA_PASSWORD", Broker.password)
            config = load_config(self.folder / "job.yaml")
            if config.holdout is not None:
                measures = Holdout(config).measure((model := committed(self.at, self.job)).estimator) or {}
                assert model.snapshot.doubt == WORSE * ("warning" in measures)
            terms: dict[str, Any] = {"cap": config.cap_budget, "config": config.text(), "shared": True}
            with Store(config.store_path, self.job, config.fingerprint(), **terms) as store:
                store.ledger.prepare(subjects_bytes(people))
                spent = {person: store.ledger.spent(person).records for person in people}
        assert max(spent.values()) <= RECORDS_OF_A_PERSON
        if self.kind in EXACT:
            assert spent == {person: self.spent[person] for person in people}
        elif self.kind not in ("user-level", "windowed"):
            assert sum(spent.values()) == learned
        else:
            assert 2 * sum(spent.values()) >= learned


def product() -> str:
    """The last commit that changed the library; with a plus sign if it has changes that are not committed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    folders = ("--", "streamdp", "connectors")
    return git("log", "-1", "--format=%h", *folders) + "+" * bool(git("status", "--porcelain", *folders))


class Log:
    """A line for each stream that was read to its end, or that failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text() if path.exists() else ""
        self.streams: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]

    def add(self, **stream: Any) -> None:
        """Add a stream, at once."""
        self.streams.append(stream)
        with self._path.open("a") as file:
            file.write(json.dumps(stream) + "\n")

    def of(self, which: Which) -> list[dict[str, Any]]:
        """The streams of a cell."""
        return [stream for stream in self.streams if tuple(stream["cell"]) == which]

    def faults(self, which: Which, product: str) -> int:
        """How many faults a cell has had with this version of the library."""
        return sum(sum(stream["faults"].values()) for stream in self.of(which) if stream["product"] == product)

    def passed(self, chosen: list[Which], product: str) -> bool:
        """Whether no stream of these cells failed with this version of the library."""
        return not any(s["failed"] for which in chosen for s in self.of(which) if s["product"] == product)


def campaign(log: Log, chosen: list[Which], faults: int, rows: int, keep: Path) -> bool:
    """Streams of each cell in turn until the log has so many faults of each; returns whether all streams of this
    version passed, also those of earlier runs.

    The folder of a stream that failed is copied to `keep`.
    """
    version = product()
    if all(log.faults(which, version) >= faults for which in chosen):
        return log.passed(chosen, version)
    with tempfile.TemporaryDirectory() as temporary, FragileServers(Path(temporary)) as servers:
        while open_cells := [which for which in chosen if log.faults(which, version) < faults]:
            for which in open_cells:
                number = len(log.of(which))
                folder, failed, began = Path(temporary) / "stream", "", time.monotonic()
                cell = Cell(folder, servers, *which, seed=1000 * CELLS.index(which) + number, rows=rows)
                try:
                    cell.run(PER_STREAM)
                except Exception as error:  # noqa: BLE001 - it is counted, and the campaign goes on
                    failed = type(error).__name__
                    traceback.print_exc()
                    shutil.copytree(folder, keep / f"{'-'.join(which)}-{number}", dirs_exist_ok=True)
                log.add(
                    cell=which,
                    product=version,
                    stream=number,
                    transactions=cell.transactional,
                    secure=cell.secure,
                    records=sum(len(entries) for entries in cell.input.values()),
                    commits=cell.commits,
                    faults=dict(cell.done),
                    seconds=round(time.monotonic() - began),
                    failed=failed,
                )
                print(log.streams[-1], flush=True)
                shutil.rmtree(folder)
    return log.passed(chosen, version)


def report(streams: list[dict[str, Any]]) -> str:
    """The table of the campaign."""
    lines = [
        "| job | store | source | streams | commits | " + " | ".join(FAULTS) + " |",
        "|---" * (5 + len(FAULTS)) + "|",
    ]

    def faults(of: list[dict[str, Any]]) -> Counter[str]:
        return sum((Counter(stream["faults"]) for stream in of), Counter[str]())

    for which in CELLS:
        mine = [stream for stream in streams if tuple(stream["cell"]) == which]
        numbers = [len(mine), sum(stream["commits"] for stream in mine), *(faults(mine)[fault] for fault in FAULTS)]
        lines.append("| " + " | ".join([*which, *(f"{number:,}" for number in numbers)]) + " |")
    products = {stream["product"]: None for stream in streams}
    by_product = ", ".join(
        f"{name} ({faults(mine).total():,}; {sum(bool(s['failed']) for s in mine)} streams failed)"
        for name in products
        if (mine := [stream for stream in streams if stream["product"] == name])
    )
    lines += [
        "",
        f"{faults(streams).total():,} faults over {sum(s['records'] for s in streams):,} records in"
        f" {sum(s['seconds'] for s in streams) / 60:.0f} minutes; {sum(bool(s['failed']) for s in streams)} streams"
        f" failed. {sum(s['transactions'] for s in streams)} streams were in transactions,"
        f" {sum(s['secure'] for s in streams)} over TLS and with passwords. Faults by the commit of the library:"
        f" {by_product}.",
    ]
    return "\n".join(lines)


MATRIX = """# The kill campaign

`make campaign-kills` runs every kind of job under every kind of fault (`tests/campaigns/test_kill_matrix.py`), on three
Kafka brokers and on PostgreSQL with a synchronous standby. The records are counted in the test, from the input alone.
It passes only if every commit shows the numbers of the records before its position, every record is counted once, no
subject is over its cap, each bad record has one dead letter, and a worker commits again after each fault of a server
or of a connection. Every second Kafka stream is in a compacted topic, in transactions of which some are aborted. Half
of the streams use TLS and passwords, for Kafka and for PostgreSQL. Since 2ef6ca0 each worker that reads Kafka has one
of the two clients, drawn at its start. `benchmarks/campaign.jsonl` has a line for each
stream; an interrupted campaign continues. The streams that failed found four defects of the library, which are fixed
with tests: spends that counted twice, workers that ended while the brokers were away (two kinds), and dead letters that
were written twice. With c850cbe and 342d710, two streams each waited for
a window that their last users could not fill: a defect of the campaign, which now asks the store what waits. With
2ef6ca0, one worker could not send dead letters after its brokers were back, because its client waited longer before it
tried them again than messages may wait; fixed with a test. With 400792db, one worker sent three dead letters again.
A defect that explains it is fixed with a test: if the brokers gave no answer, the letters that were found after a crash
were forgotten.

"""


def write(text: str) -> None:
    """Replace benchmarks/campaign.md."""
    (ROOT / "benchmarks" / "campaign.md").write_text(MATRIX + text + "\n", encoding="utf-8")


SMALL = [
    ("LDP", "sqlite", "kafka"),
    ("pan-private", "sqlite", "file"),
    ("user-level", "postgresql", "kafka"),
    ("windowed", "postgresql", "file"),
    ("shuffled", "sqlite", "file"),
    ("LDP statistics", "postgresql", "kafka"),
    ("windowed statistics", "sqlite", "file"),
    ("LDP", "sqlite", "file"),
    ("pan-private with statistics", "sqlite", "file"),
]


@pytest.mark.parametrize("number", some(range(len(SMALL)), 4, 7, 8))
def test_a_fault_of_each_kind_of_job(
    tmp_path: Path, broker_behind_proxy: tuple[Broker, Proxy], postgres: Any, number: int
) -> None:
    (broker, proxy), which = broker_behind_proxy, SMALL[number]
    with contextlib.closing(SharedServers(broker.bootstrap, proxy, postgres.url)) as servers:
        for tries in range(8):  # a file may be read to its end before the fault: then a longer one is next
            cell = Cell(tmp_path / f"cell{tries}", servers, *which, seed=number, rows=1_000 * 4**tries)
            cell.run(1)
            if cell.done:
                break
    assert cell.done.total() == 1
    assert cell.commits


def test_a_campaign_that_goes_on_remembers_streams_that_failed(tmp_path: Path) -> None:
    log, which = Log(tmp_path / "log.jsonl"), CELLS[0]
    log.add(cell=which, product="older", faults={"kill": 9}, failed="AssertionError")
    log.add(cell=which, product=product(), faults={"kill": 9}, failed="")
    assert campaign(Log(tmp_path / "log.jsonl"), [which], 9, rows=10, keep=tmp_path)
    log.add(cell=which, product=product(), faults={"kill": 9}, failed="AssertionError")
    assert not campaign(Log(tmp_path / "log.jsonl"), [which], 9, rows=10, keep=tmp_path)


@pytest.mark.campaign
def test_the_whole_matrix(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    assert campaign(log, CELLS, faults=10, rows=6_000, keep=tmp_path / "failed")
    print("\n" + report(log.streams))


def main() -> int:
    """Run the campaign, or go on with it."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.test_kill_matrix", description=main.__doc__)
    parser.add_argument(
        "--faults",
        type=int,
        default=1_000,
        help="in all, with the present version of the library; 0: only write what the log has",
    )
    parser.add_argument("--rows", type=int, default=6_000, help="of a stream")
    parser.add_argument("--cell", type=int, action="append", choices=range(len(CELLS)), help="default: all")
    parser.add_argument("--log", type=Path, default=ROOT / "benchmarks" / "campaign.jsonl")
    parser.add_argument("--keep", type=Path, default=Path("failed-streams"), help="for folders of streams that failed")
    parser.add_argument("--write", action="store_true", help="write benchmarks/campaign.md, also after Ctrl-C")
    given = parser.parse_args()
    chosen = [CELLS[number] for number in given.cell or range(len(CELLS))]
    log, passed = Log(given.log), False
    try:
        passed = campaign(log, chosen, -(-given.faults // len(chosen)), given.rows, given.keep)
    finally:
        print(report(log.streams))
        if given.write:
            write(report(log.streams))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
