"""Eight callers of a service, while services are killed, the database is killed and the disk is full.

Four callers send records and three send reports, and repeat each call until it is answered; one sends records and never
repeats a call. The callers count the answers. At the end the store has counted what they counted: every answered record
once, no other record twice, and no person over the cap. On PostgreSQL several services share the job behind a balancer:
each call comes to any of them, and some calls come to two of them at the same time.

    python -m tests.campaigns.test_service_kills --write
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from servers.postgres import Postgres
from servers.process import free_ports
from streamdp.config.job import load_config
from streamdp.protocol.local_half import LocalHalf
from streamdp.serving.snapshots import combined, restore
from streamdp.store.store import Store
from tests.support.paths import ROOT
from tests.support.proxy import Proxy
from tests.support.service import PATIENCE_S, ServiceProcess, record

MARK = "marked"
"""A part of every subject. Neither logs nor the database may show it."""
KEY = "5a" * 32
OF_A_CALL = 20
OF_A_PERSON = 3
CAP = 2

JOB = """job: late
source: {{type: http}}
schema:
  features: {{dep_delay: [-30, 60], origin: [EWR, JFK, LGA]}}
  subject: tailnum{target}
cap: eps=2
store: {store}
"""
LEARNED = {
    "model": """
  target: {column: late, classes: ["False", "True"]}
model: {estimator: LDPASGDClassifier, budget: eps=1}""",
    "statistics": """
statistics: {delay: {mean: dep_delay, by: origin}, median: {quantile: 0.5, of: dep_delay}, from: {proportion: origin}}
model: {trust: nobody, budget: eps=1}""",
}
"""What the job learns."""
DISK_FULL = """CREATE FUNCTION streamdp.no_space() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_space BEFORE UPDATE ON streamdp.shards EXECUTE FUNCTION streamdp.no_space()"""
DISK_FREE = "DROP TRIGGER no_space ON streamdp.shards; DROP FUNCTION streamdp.no_space()"


class Callers:
    """The callers, and what they were told.

    Attributes
    ----------
    told
        The sums of the answers: of those who repeat, and of the one who does not, under `once`.
    answered, refused
        How many calls were answered, and how many attempts were not.
    people
        Of each caller.
    """

    def __init__(self, address: str, learned: str) -> None:
        self._address, self._of_model = address, learned == "model"
        self.people: list[set[str]] = [set() for _ in range(8)]
        self._finish = False
        self._lock = threading.Condition()
        self.told: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.answered = self.refused = self.twice = 0
        self._gone = False
        self._pool, self._copies = ThreadPoolExecutor(8), ThreadPoolExecutor(4)
        work = [self.learner] * 4 + [self.device] * 3 + [self.once]
        self._running = [self._pool.submit(work, caller) for caller, work in enumerate(work)]

    def calls(self, caller: int, of_a_person: int) -> Iterator[tuple[int, list[str]]]:
        """The number of each call, and its people: everybody is in so many calls, one after the other."""
        call = 0
        while call % of_a_person or not self._finish:
            people = [f"{MARK}-{caller}-{call // of_a_person * OF_A_CALL + i}" for i in range(OF_A_CALL)]
            self.people[caller].update(people)
            yield call, people
            call += 1

    def learner(self, caller: int) -> None:
        with httpx.Client(base_url=self._address, timeout=60) as http:
            for call, people in self.calls(caller, OF_A_PERSON):
                copy = self._copies.submit(self._copy, people, f"{caller}-{call}") if call % 5 == caller else None
                answer = self._until_answered(http, "learn", self._records(people), f"{caller}-{call}")
                if copy is not None:
                    assert copy.result(PATIENCE_S) == answer
                self._hear("", answer, twice=copy is not None)

    def _copy(self, people: list[str], key: str) -> dict[str, Any]:
        """The same call on a connection of its own."""
        with httpx.Client(base_url=self._address, timeout=60) as http:
            return self._until_answered(http, "learn", self._records(people), key)

    def once(self, caller: int) -> None:
        with httpx.Client(base_url=self._address, timeout=60) as http:
            for _, people in self.calls(caller, 1):
                if (answer := self._attempt(http, "learn", self._records(people), None)) is not None:
                    self._hear("once ", answer)
                else:
                    time.sleep(0.1)

    def device(self, caller: int) -> None:
        with httpx.Client(base_url=self._address, timeout=60) as http:
            for call, people in self.calls(caller, OF_A_PERSON):
                half = self._document(http)
                x = {"dep_delay": 3.0, "origin": "JFK"}
                y = "True" if self._of_model else None
                reports = [half.report(x, y, f"{caller}-{call}-{i}", subject=p) for i, p in enumerate(people)]
                body = json.dumps({"reports": reports}).encode()
                self._hear("", self._until_answered(http, "reports", body, f"{caller}-{call}"))

    def _records(self, people: list[str]) -> bytes:
        made = [record(i, subject=person) for i, person in enumerate(people)]
        for each in made:
            if not self._of_model:
                del each["y"]
        return json.dumps({"records": made}).encode()

    def _document(self, http: httpx.Client) -> LocalHalf:
        while not self._gone:
            try:
                response = http.get("/v1/models/late/randomizer")
                if response.status_code == 200:
                    return LocalHalf(response.content, None)
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError("the test has failed")

    def _until_answered(self, http: httpx.Client, path: str, body: bytes, key: str) -> dict[str, Any]:
        while (answer := self._attempt(http, path, body, key)) is None:
            assert not self._gone
            time.sleep(0.05)
        return answer

    def _attempt(self, http: httpx.Client, path: str, body: bytes, key: str | None) -> dict[str, Any] | None:
        # The next call comes on another connection, to another service.
        headers = {"Content-Type": "application/json", "Connection": "close"}
        headers |= {} if key is None else {"Idempotency-Key": key}
        try:
            response = http.post(f"/v1/models/late/{path}", content=body, headers=headers)
        except httpx.HTTPError:
            response = None
        if response is not None and response.status_code == 200:
            found: dict[str, Any] = response.json()
            return found
        assert response is None or response.status_code in (429, 503), response.text
        with self._lock:
            self.refused += 1
            self._lock.notify_all()
        return None

    def _hear(self, kind: str, answer: dict[str, Any], *, twice: bool = False) -> None:
        with self._lock:
            self.twice += twice
            self.told.update({kind + "learned": answer["learned"], kind + "refused": answer["refused"]})
            self.told[kind + "dead"] += len(answer["dead"])
            self.reasons.update(dead["reason"] for dead in answer["dead"])
            self.answered += 1
            self._lock.notify_all()

    def wait(self, answered: int = 0, refused: int = 0) -> None:
        """Wait for so many more answers, and attempts without one."""
        with self._lock:
            until = self.answered + answered, self.refused + refused
            assert self._lock.wait_for(lambda: self.answered >= until[0] and self.refused >= until[1], PATIENCE_S)

    def end(self) -> None:
        """Begin no more people, and wait until all calls are answered."""
        self._finish = True
        for running in self._running:
            running.result(PATIENCE_S)

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        self._gone = self._finish = True
        self._pool.shutdown()
        self._copies.shutdown()


class Services:
    """Services that share a job on PostgreSQL, or one."""

    def __init__(self, folder: Path, postgres: Postgres | None, number: int, learned: str) -> None:
        self.folder, self.postgres = folder, postgres
        self.ports = list(free_ports(folder, tuple(f"service {n}" for n in range(number))).values())
        store = postgres.url if postgres else "late.db"
        (folder / "late.yaml").write_text(JOB.format(store=store, target=LEARNED[learned]))
        self._processes: dict[int, ServiceProcess] = {}
        for port in self.ports:
            self.start(port)

    def start(self, port: int, **more: str) -> None:
        """Start a service, and wait until it answers."""
        if self.postgres is not None:
            more |= {"STREAMDP_SUBJECT_KEY": KEY, "TESTS_SHARD_SECONDS": "5"}
        self._processes[port] = ServiceProcess(self.folder, port, **more)

    def kill(self, port: int, how: int = signal.SIGKILL) -> None:
        self._processes[port].kill(how)

    def end(self) -> None:
        for port in self.ports:
            self.kill(port, signal.SIGTERM)

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.__exit__()

    def sql(self, text: str) -> None:
        with psycopg.connect(self.postgres.url, autocommit=True) as admin:
            admin.execute(text)


def run(
    folder: Path,
    postgres: Postgres | None,
    learned: str,
    *,
    services: int = 1,
    calls: int,
    faults: list[str],
    seed: int,
) -> dict[str, int]:
    """Let faults happen within about so many calls, and check the counts; returns the figures."""
    rng, began = random.Random(seed), time.monotonic()
    with ExitStack() as stack:
        running = stack.enter_context(Services(folder, postgres, services, learned))
        proxy = stack.enter_context(Proxy(*running.ports))
        callers = stack.enter_context(Callers(f"http://127.0.0.1:{proxy.port}", learned))
        for done, fault in enumerate(faults):
            print(f"{done} of {len(faults)} faults, {callers.answered} calls answered", flush=True)
            callers.wait(answered=rng.randrange(1, 1 + 2 * calls // len(faults)))
            time.sleep(rng.uniform(0, 0.1))  # another instant of a commit; nothing depends on it
            strike(running, callers, fault, rng)
        callers.wait(answered=max(1, calls - callers.answered))
        callers.end()
        running.end()
    shards = check(running, callers, len(faults))
    logs = "".join(path.read_text() for path in folder.glob("log-*"))
    gone_back = len(re.findall("back at the last commit, because", logs))
    return {
        "services": services,
        **{f"faults: {name}": count for name, count in sorted(Counter(faults).items())},
        "records and reports in answers": callers.told.total(),
        **{f"answered: {name}": count for name, count in sorted(callers.told.items())},
        **{f"dead: {reason}": count for reason, count in sorted(callers.reasons.items())},
        "calls answered": callers.answered,
        "calls sent to two services at the same time": callers.twice,
        "attempts without an answer": callers.refused,
        "services went back to their last commit": gone_back,
        "shards at the end": shards,
        "seconds": round(time.monotonic() - began),
    }


def strike(services: Services, callers: Callers, fault: str, rng: random.Random) -> None:
    """Let one fault happen, and end it."""
    port = rng.choice(services.ports)
    match fault:
        case "kill" | "stop":
            services.kill(port, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            services.start(port)
        case "database":
            services.postgres.kill()
            services.postgres.start()
        case "disk" if services.postgres is not None:
            services.sql(DISK_FULL)
            callers.wait(refused=8)
            services.sql(DISK_FREE)
        case "disk":
            services.kill(port)
            sizes = [path.stat().st_size for path in services.folder.iterdir()]
            services.start(port, TESTS_FILE_BYTES=str(max(sizes) + 100_000))
            callers.wait(refused=8)
            services.kill(port)
            services.start(port)


def check(services: Services, callers: Callers, faults: int) -> int:
    """The store has what the callers were told, and nobody is over the cap; returns the number of shards.

    The only dead ones are reports whose document was issued before its service ended: the successor knows what the
    last version asked, and no earlier one. A fault may spoil one call of each device, and one more if the shards
    change their services twice.
    """
    config = load_config(services.folder / "late.yaml").located(services.folder)
    shards = Store.snapshots(config.store_path, "late")
    snapshot = combined(shards)
    learned, refused, dead = snapshot.counts.learned, snapshot.counts.refused, snapshot.counts.dead_letters
    told = callers.told
    with pytest.MonkeyPatch.context() as patch:
        if services.postgres is not None:
            patch.setenv("STREAMDP_SUBJECT_KEY", KEY)
        with Store(
            config.store_path, "late", config.fingerprint(), cap=config.cap_budget, config=config.text()
        ) as store:
            spent = [Counter({who: store.ledger.spent(who).records for who in group}) for group in callers.people]
    for caller in range(4):
        assert set(spent[caller].values()) == {CAP}
    assert all(max(group.values()) <= CAP for group in spent)
    assert max(spent[7].values()) <= 1
    assert told["once learned"] <= spent[7].total()
    assert (told["once refused"], told["once dead"]) == (0, 0)
    assert learned == sum(group.total() for group in spent) == told["learned"] + spent[7].total()
    assert (refused, dead) == (told["refused"], told["dead"])
    assert callers.reasons.keys() <= {"stale"}
    assert callers.reasons["stale"] <= 2 * 3 * OF_A_CALL * faults
    sent = OF_A_PERSON * sum(len(group) for group in callers.people[:7])
    assert told["learned"] + told["refused"] + told["dead"] == sent
    assert sum(spent[caller].total() for caller in (4, 5, 6)) > 0
    assert restore(snapshot).estimator.n_seen == learned
    for text in shown(services):
        assert MARK.encode() not in text
        assert MARK.encode().hex().encode() not in text
    return len(shards)


def shown(services: Services) -> Iterator[bytes]:
    """The logs, and all that is in the database."""
    yield from (path.read_bytes() for path in services.folder.iterdir())
    if services.postgres is not None:
        with psycopg.connect(services.postgres.url) as reader:
            tables = reader.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'streamdp'").fetchall()
            assert len(tables) >= 4
            for (table,) in tables:
                with reader.cursor().copy(f'COPY streamdp."{table}" TO STDOUT') as rows:
                    yield b"".join(bytes(part) for part in rows)


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A server that the test kills."""
    with Postgres(tmp_path / "server") as server:
        yield server


@pytest.mark.parametrize("learned", LEARNED)
def test_a_service_is_killed_and_its_disk_is_full(learned: str, tmp_path: Path) -> None:
    run(tmp_path, None, learned, calls=16, faults=["disk"], seed=1)


@pytest.mark.campaign
@pytest.mark.parametrize("learned", LEARNED)
def test_two_services_and_their_database_are_killed(learned: str, tmp_path: Path, own_postgres: Postgres) -> None:
    (folder := tmp_path / "services").mkdir()
    run(folder, own_postgres, learned, services=2, calls=10, faults=["kill", "database"], seed=2)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fifty_kills(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("own_postgres") if kind == "postgresql" else None
    (folder := tmp_path / "services").mkdir()
    figures = fifty_kills(folder, server, "model", 0, of=1)
    assert figures["records and reports in answers"] >= 100_000


def fifty_kills(folder: Path, server: Postgres | None, learned: str, part: int, *, of: int) -> dict[str, int]:
    """A part of: 100,000 records and reports, 50 ends of a service, a full disk, and 5 ends of the database."""
    faults = ["kill"] * 45 + ["stop"] * 5 + ["disk"] + ["database"] * (0 if server is None else 5)
    random.Random(3).shuffle(faults)
    services = 1 if server is None else 3
    return run(folder, server, learned, services=services, calls=5100 // of, faults=faults[part::of], seed=3 + part)


PARTS = [("model", part) for part in range(5)] + [("statistics", 0)]
DONE = ROOT / "benchmarks" / "service_kills.jsonl"
PAGE = ROOT / "benchmarks" / "service_kills.md"
ABOUT = """# Kills of services

`python -m tests.campaigns.test_service_kills --write` lets eight callers send records and reports to three services
that share a job on PostgreSQL, behind a balancer. Meanwhile services are killed (SIGKILL) or stopped (SIGTERM), the
database is killed, and the disk is full. It passes only if every answered record counts exactly once in the store, no
other record counts twice, no person is over the cap, and neither logs nor database show a subject. It has six parts,
each with servers of its own: five learn a model, and one statistics. "once" is the caller who never repeats a call. A
report is dead, "stale", if its document was issued before its service ended and is not of the last version: the
successor does not know what earlier ones asked.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.test_service_kills", description=__doc__)
    parser.add_argument(
        "--parts", type=int, default=len(PARTS), help="how many parts to run now, of those not done yet"
    )
    parser.add_argument("--write", action="store_true", help="note the parts, and replace benchmarks/service_kills.md")
    given = parser.parse_args()
    done = [json.loads(line) for line in DONE.read_text().splitlines()] if given.write and DONE.exists() else []
    for learned, part in PARTS[len(done) :][: given.parts]:
        with tempfile.TemporaryDirectory(prefix="streamdp-kills-") as folder:
            (services := Path(folder) / "services").mkdir()
            with Postgres(Path(folder) / "server") as server:
                done.append(fifty_kills(services, server, learned, part, of=5))
        print(json.dumps(done[-1]), flush=True)
        if given.write:
            write(done)


def write(done: list[dict[str, int]]) -> None:
    """Note the figures of the parts, and write the page with their sums."""
    DONE.write_text("".join(json.dumps(figures) + "\n" for figures in done), encoding="utf-8")
    of_each = ("services", "shards at the end")
    names = sorted({name for figures in done for name in figures} - {*of_each, "seconds"})
    sums = {name: sum(figures.get(name, 0) for figures in done) for name in [*names, "seconds"]}
    most = {f"{name}, at most": max(figures[name] for figures in done) for name in of_each}
    rows = "".join(f"| {name} | {number:,} |\n" for name, number in ({"parts": len(done)} | most | sums).items())
    PAGE.write_text(f"{ABOUT}\n| what | how many |\n| --- | --- |\n{rows}", encoding="utf-8")


if __name__ == "__main__":
    main()
