"""Every kind of job under every kind of fault, from a file and from Kafka, into SQLite and PostgreSQL.

The input is made here, and counted here in plain Python with nothing of the library. After each fault every new commit
must show the numbers of the records before its position; at the end every record is counted once, no subject is over
its cap, and each bad record has one dead letter. What a local model learned and refused, and what its people spent, is
known exactly. For the other kinds the faults decide where batches end, so that there only sums and caps are exact.

`python -m tests.campaigns.test_kill_matrix --write` runs 1,000 faults and writes benchmarks/campaign.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, product
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import psycopg
import pytest
from sqlalchemy.engine import make_url

from connectors.kafkasink import read_topic
from servers.broker import Broker, create_topic
from servers.postgres import Postgres
from streamdp.config.job import load_config
from streamdp.data.records import WHOLE, Shard
from streamdp.store.snapshot import Counts
from streamdp.store.store import HISTORY, Store
from tests.support.commands import environment
from tests.support.paths import ROOT
from tests.support.proxy import Proxy
from tests.support.zygote import Forked

PARTITIONS = 2
RECORDS_OF_A_PERSON = 3
PATIENCE_S = 300.0  # no run waits so long unless something is wrong
KEY = "5a" * 32
KINDS = {
    "LDP": "estimator: LDPASGDClassifier, budget: eps=1",
    "pan-private": 'estimator: PanPrivateClassifier, budget: "eps=8,delta=1e-6", batch_size: 40',
    "user-level": 'estimator: UserLevelLDPClassifier, budget: "eps=8,delta=1e-6", items_per_user: 2, window: 60',
    "windowed": 'estimator: WindowedClassifier, budget: "eps=8,delta=1e-6", items_per_user: 2, window: 60, '
    "method: private-range",
}
CAPS = {kind: "eps=3" if kind == "LDP" else "eps=24,delta=1e-4" for kind in KINDS}
FAULTS = {
    "kill": ("sqlite", "postgresql", "file", "kafka"),
    "stop": ("sqlite", "postgresql", "file", "kafka"),
    "clock jump": ("sqlite", "postgresql", "file", "kafka"),
    "full disk": ("sqlite", "file", "kafka"),
    "connection cut in a commit": ("postgresql", "file", "kafka"),
    "database killed": ("postgresql", "file", "kafka"),
    "broker killed": ("sqlite", "postgresql", "kafka"),
}
"""Where each fault can happen."""
WEIGHTS = {"kill": 10, "stop": 3, "database killed": 1, "broker killed": 1}
"""How often, if not 2."""
CELLS = list(product(KINDS, ("sqlite", "postgresql"), ("file", "kafka")))

JOB = """job: cell
source: {source}
schema:
  features: {{a: [-1, 1], b: [x, y]}}
  target: {{column: y, classes: ["0", "1"]}}
  subject: person
model: {{{model}}}
cap: "{cap}"
commit: {{records: {records}, seconds: 0.05}}
store: {store}
"""


class Entry(NamedTuple):
    """A record: the position after it, and whose it is; None for a bad one."""

    position: int
    person: str | None


class Servers:
    """A broker and a database that the campaign kills, and the proxy in front of the database."""

    def __init__(self, folder: Path) -> None:
        self.broker = Broker(folder / "kafka")
        self.postgres = Postgres(folder / "postgres")
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Servers:
        self._stack.enter_context(self.broker)
        self._stack.enter_context(self.postgres)
        port = make_url(self.postgres.url).port
        assert port is not None
        self.proxy = self._stack.enter_context(Proxy(port))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def database(self) -> str:
        """A new database, reached through the proxy."""
        name = f"cell_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.postgres.url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        url = make_url(self.postgres.url).set(database=name, port=self.proxy.port)
        return url.render_as_string(hide_password=False)


class Cell:
    """A job of one kind over one stream, from its first record to its last, with faults in between."""

    def __init__(
        self, folder: Path, servers: Servers, kind: str, store: str, source: str, *, seed: int, rows: int
    ) -> None:
        self.folder, self.servers, self.kind, self.store, self.source = folder, servers, kind, store, source
        self.rng = random.Random(seed)
        self.transactional = source == "kafka" and seed % 2 == 1
        self.topic = f"cell-{uuid.uuid4().hex[:12]}"
        self.letters: str | None = None
        self.at = str(folder / "cell.db") if store == "sqlite" else servers.database()
        self.done: Counter[str] = Counter()
        self.commits = 0
        self._seen: dict[Shard, int] = {}
        folder.mkdir(parents=True)
        self._make_input(rows)
        self._replay()

    # --- the input, and what it amounts to

    def _make_input(self, rows: int) -> None:
        records: list[tuple[str | None, dict[str, str]]] = []
        for i in range(rows):
            bad, person = self.rng.random() < 0.03, f"p{i // 8 + self.rng.randrange(rows // 6)}"
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
            self._produce(records)

    def _produce(self, records: list[tuple[str | None, dict[str, str]]]) -> None:
        """To a topic: a subject's records in one partition. In every second run, in transactions of which some are
        aborted, to a compacted topic where each message has a key of its own."""
        config = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
        bootstrap = self.servers.broker.bootstrap
        create_topic(bootstrap, self.topic, PARTITIONS, config if self.transactional else None)
        options: dict[str, Any] = {"bootstrap.servers": bootstrap, "linger.ms": 1, "batch.num.messages": 20}
        if self.transactional:
            options["transactional.id"] = self.topic
        producer = confluent_kafka.Producer(options)
        if self.transactional:
            producer.init_transactions()
        self.input = {Shard(self.topic, p): [] for p in range(PARTITIONS)}

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

    def _replay(self) -> None:
        """Counts before each position: exact for a local model, for the others of good and bad records."""
        self.before: dict[Shard, dict[int, Counts]] = {}
        self.spent: Counter[str] = Counter()
        for shard, entries in self.input.items():
            outcomes = []
            for entry in entries:
                fits = entry.person is not None and (
                    self.kind != "LDP" or self.spent[entry.person] < RECORDS_OF_A_PERSON
                )
                if fits and entry.person is not None:
                    self.spent[entry.person] += 1
                outcomes.append((fits, entry.person is not None and not fits, entry.person is None))
            sums = accumulate(outcomes, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), initial=(0, 0, 0))
            places = [entries[0].position - 1, *(entry.position for entry in entries)]
            self.before[shard] = {place: Counts(*map(int, c)) for place, c in zip(places, sums, strict=True)}

    def expected(self, shard: Shard, position: int) -> Counts:
        """The counts of the records before a position, which may also lie between records."""
        known = self.before[shard]
        if position not in known:
            position = max((place for place in known if place <= position), default=min(known))
        return known[position]

    # --- runs and faults

    def start(self, records: int, *arguments: str, **more: str) -> Forked:
        source = "{path: stream.csv, max_bad_share: 0.5, dead_letters: dead.jsonl}"
        if self.source == "kafka":
            if self.letters is None:
                self.letters = "dead_letters: dead.jsonl"
                if not self.transactional:
                    create_topic(self.servers.broker.bootstrap, f"{self.topic}-dead", 2)
                    self.letters = f"dead_letter_topic: {self.topic}-dead"
            source = (
                f"{{type: kafka, topic: {self.topic}, subject_from: value, {self.letters}, max_bad_in_a_row: null, "
                "options: {max_partition_fetch_bytes: 1500, fetch_max_bytes: 3000, session_timeout_ms: 2000, "
                "heartbeat_interval_ms: 400}}"
            )
        text = JOB.format(
            source=source,
            model=KINDS[self.kind],
            cap=CAPS[self.kind],
            records=records,
            store=self.at,
        )
        (self.folder / "job.yaml").write_text(text)
        given = environment(self.servers.broker.bootstrap, STREAMDP_SUBJECT_KEY=KEY, **more)
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            return Forked(["run", "job.yaml", *arguments], cwd=self.folder, env=given, stdout=out, stderr=err)

    def strike(self) -> bool:
        """Run until a random instant, and let a fault happen; returns whether it came before the end of the stream."""
        possible = [fault for fault, where in FAULTS.items() if {self.store, self.source} <= set(where)]
        fault = self.rng.choices(possible, [WEIGHTS.get(fault, 2) for fault in possible])[0]
        more = {"TESTS_CLOCK_SECONDS": str(self.rng.choice([-86_400, -3, 3, 86_400]))} if fault == "clock jump" else {}
        if fault == "full disk":
            sizes = [path.stat().st_size for path in self.folder.glob("cell.db*")]
            more["TESTS_FILE_BYTES"] = str(max(200_000, *sizes, 0) + self.rng.randrange(100_000))
        process = self.start(self.rng.choice([1, 2, 4]), **more)
        try:
            self._wait(process, self.rng.random() < 0.25)
            if process.poll() == 0:
                return False
            self.done[self._do(fault, process)] += 1
        finally:
            process.kill()
            process.wait()
        said = (self.folder / "err").read_text()
        assert "Traceback" not in said, said
        self.check()
        return True

    def _wait(self, process: Forked, early: bool) -> None:
        """To a random instant of the start, or after the first commit of this run."""
        deadline = time.monotonic() + PATIENCE_S
        while not early and b'"commit"' not in (self.folder / "out").read_bytes() and process.poll() is None:
            assert time.monotonic() < deadline, (self.folder / "err").read_text()
            time.sleep(0.01)
        time.sleep(self.rng.uniform(0, 0.6))

    def _do(self, fault: str, process: Forked) -> str:
        """Let a fault happen; returns which one did: a disk that was not full, or a connection without a commit, is a
        mere kill."""
        servers = self.servers
        match fault:
            case "kill":
                process.kill()
            case "stop":
                process.terminate()
                code = process.wait(PATIENCE_S)  # the third: before the command has begun
                assert code in (0, 143, -signal.SIGTERM), (code, (self.folder / "err").read_text())
            case "clock jump":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
                time.sleep(0.3)
                process.kill()
            case "full disk":
                time.sleep(0.5)
                if process.poll() is None:  # it had room enough
                    fault = "kill"
                    process.kill()
            case "connection cut in a commit":
                before = servers.proxy.cuts
                servers.proxy.cut_at(b"COMMIT", forward=self.rng.random() < 0.5)
                time.sleep(0.5)
                if servers.proxy.cuts == before:
                    fault = "kill"
                process.kill()
            case "database killed":
                servers.postgres.kill()
                time.sleep(self.rng.uniform(0, 0.5))
                servers.postgres.start()
                time.sleep(0.3)
                process.kill()
            case "broker killed":
                servers.broker.kill()
                time.sleep(self.rng.uniform(0, 0.5))
                servers.broker.start()
                time.sleep(0.3)
                process.kill()
        process.wait()
        return fault

    # --- what must hold

    def check(self) -> None:
        """Every new commit shows the numbers of the records before its position."""
        if self.store == "sqlite" and not Path(self.at).exists():
            return
        try:
            commits = Store.history(self.at, HISTORY, "cell")
        except Exception as error:
            if "no such job" in str(error):  # the first run died before it made its store
                return
            raise
        for commit in commits:
            if commit.seq <= self._seen.get(commit.shard, 0):
                continue
            self._same(commit.counts, self.expected(commit.shard, self._place(commit.position)))
            self.commits += 1
        for commit in commits:
            self._seen[commit.shard] = max(commit.seq, self._seen.get(commit.shard, 0))

    def _place(self, position: dict[str, Any]) -> int:
        return position["offset"] if self.source == "kafka" else max(1, position["row"])

    def _same(self, found: Counts, expected: Counts) -> None:
        if self.kind == "LDP":
            assert found == expected
        else:
            good = expected.learned + expected.refused
            assert (found.learned + found.refused, found.dead) == (good, expected.dead)

    def finish(self) -> None:
        """Run to the end without a fault, and check everything."""
        deadline = time.monotonic() + PATIENCE_S
        while True:  # on a busy machine, a worker may have been idle for three seconds before the end
            process = self.start(500, *(("--idle-seconds", "3") if self.source == "kafka" else ()))
            assert process.wait(PATIENCE_S) == 0, (self.folder / "err").read_text()
            self.check()
            snapshots = {s.shard: s for s in Store.snapshots(self.at, "cell")}
            ends = {shard: entries[-1].position for shard, entries in self.input.items()}
            if all(s in snapshots and self._place(snapshots[s].position) >= end for s, end in ends.items()):
                break
            assert time.monotonic() < deadline, ({s: x.position for s, x in snapshots.items()}, ends)
        for shard, entries in self.input.items():
            self._same(snapshots[shard].counts, self.expected(shard, entries[-1].position))
            assert snapshots[shard].state["n_seen"] == snapshots[shard].counts.learned
        self._check_letters()
        self._check_spends(sum(s.counts.learned for s in snapshots.values()))

    def _check_letters(self) -> None:
        letters = (self.folder / "dead.jsonl").read_text().splitlines() if self.letters is None else self._letters()
        found = [json.loads(text) for text in letters]
        places = Counter((item.get("partition", 0), item.get("offset", item.get("position"))) for item in found)
        after = 0 if self.source == "file" else 1
        bad = Counter(
            (s.partition, e.position - after) for s, entries in self.input.items() for e in entries if e.person is None
        )
        assert places == bad, ((places - bad).most_common(3), (bad - places).most_common(3))

    def _letters(self) -> list[str]:
        if self.letters == "dead_letters: dead.jsonl":
            return (self.folder / "dead.jsonl").read_text().splitlines()
        return [value.decode() for value in read_topic(self.servers.broker.bootstrap, f"{self.topic}-dead", {})]

    def _check_spends(self, learned: int) -> None:
        config = load_config(self.folder / "job.yaml")
        people = sorted({e.person for entries in self.input.values() for e in entries if e.person is not None})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STREAMDP_SUBJECT_KEY", KEY)
            terms: dict[str, Any] = {"cap": config.cap_budget, "config": config.text(), "shared": True}
            with Store(config.store_path, "cell", config.fingerprint(), **terms) as store:
                assert store.ledger is not None
                spent = {person: store.ledger.spent(person).records for person in people}
        assert max(spent.values()) <= RECORDS_OF_A_PERSON
        if self.kind == "LDP":
            assert spent == {person: self.spent[person] for person in people}
        elif self.kind == "pan-private":
            # A worker of a group may spend for the open batch twice, never over a cap.
            assert sum(spent.values()) == learned if self.source == "file" else sum(spent.values()) >= learned
        else:
            assert 2 * sum(spent.values()) >= learned


def run_cells(
    folder: Path, servers: Servers, cells: list[tuple[str, str, str]], faults: int, rows: int, seed: int
) -> Iterator[Cell]:
    """Streams of each cell in turn, until each has had so many faults."""
    for number, (kind, store, source) in enumerate(cells):
        left, stream = faults, 0
        while left > 0:
            at = folder / f"{number}-{stream}"
            cell = Cell(at, servers, kind, store, source, seed=seed + 1000 * number + stream, rows=rows)
            while left > 0 and cell.strike():
                left -= 1
            cell.finish()
            stream += 1
            yield cell


def report(cells: list[Cell], seconds: float) -> str:
    """The table of the campaign."""
    lines = [
        "| job | store | source | streams | commits | " + " | ".join(FAULTS) + " |",
        "|---" * (5 + len(FAULTS)) + "|",
    ]
    for which in CELLS:
        mine = [cell for cell in cells if (cell.kind, cell.store, cell.source) == which]
        done = sum((cell.done for cell in mine), Counter[str]())
        numbers = [len(mine), sum(cell.commits for cell in mine), *(done[fault] for fault in FAULTS)]
        if mine:
            lines.append("| " + " | ".join([*which, *(f"{number:,}" for number in numbers)]) + " |")
    done = sum((cell.done for cell in cells), Counter[str]())
    records = sum(len(entries) for cell in cells for entries in cell.input.values())
    lines += ["", f"{sum(done.values()):,} faults over {records:,} records in {seconds / 60:.0f} minutes."]
    return "\n".join(lines)


MATRIX = """## The matrix

`make campaign-kills` runs every kind of job under every kind of fault (`tests/campaigns/test_kill_matrix.py`). The
records are counted in the test, from the input alone. It passes only if every commit shows the numbers of the records
before its position, every record is counted once, no subject is over its cap, and each bad record has one dead letter.
Every second Kafka stream is in a compacted topic, in transactions of which some are aborted.

"""


def write(text: str) -> None:
    """Replace the last section of benchmarks/campaign.md."""
    path = ROOT / "benchmarks" / "campaign.md"
    path.write_text(path.read_text().partition("## The matrix")[0].rstrip() + "\n\n" + MATRIX + text + "\n")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("matrix")) as started:
        yield started


SMALL = [
    ("LDP", "sqlite", "kafka"),
    ("pan-private", "sqlite", "file"),
    ("user-level", "postgresql", "kafka"),
    ("windowed", "postgresql", "file"),
]


def test_a_fault_of_each_kind_of_job(tmp_path: Path, servers: Servers) -> None:
    cells = list(run_cells(tmp_path, servers, SMALL, faults=1, rows=1_000, seed=1))
    assert sum(sum(cell.done.values()) for cell in cells) == len(SMALL)
    assert all(cell.commits for cell in cells)


@pytest.mark.campaign
def test_the_whole_matrix(tmp_path: Path, servers: Servers) -> None:
    cells = list(run_cells(tmp_path, servers, CELLS, faults=10, rows=20_000, seed=2))
    print("\n" + report(cells, 0.0))


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.test_kill_matrix", description=main.__doc__)
    parser.add_argument("--faults", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", type=int, action="append", choices=range(len(CELLS)), help="default: all")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    chosen = [CELLS[number] for number in given.cell or range(len(CELLS))]
    each = -(-given.faults // len(chosen))
    began = time.monotonic()
    cells = []
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder)) as servers:
        for cell in run_cells(Path(folder), servers, chosen, each, given.rows, given.seed):
            cells.append(cell)
            print(cell.kind, cell.store, cell.source, dict(cell.done), f"{cell.commits:,} commits", flush=True)
    text = report(cells, time.monotonic() - began)
    print(text)
    if given.write:
        write(text)


if __name__ == "__main__":
    main()
