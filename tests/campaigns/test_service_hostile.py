"""Requests that are malformed, too large, deep, unfinished, slow, replayed, stale or forged, beside an honest caller.

Each is answered with a problem document of 4xx, or with a dead record and its reason. The honest caller is served, the
service needs no more memory, and no log, answer or file shows a value, a subject or a token.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamdp.protocol.local_half import LocalHalf
from streamdp.service.requests import MAX_BODY_BYTES
from streamdp.service.schemas import MAX_RECORDS
from streamdp.store.store import Store
from tests.support.commands import environment
from tests.support.service import record
from tests.support.zygote import Forked

MARK = "marked4711"
"""A part of values, subjects, ids, keys and tokens. Nothing may show it."""
TOKENS = {"learn": f"{MARK}-learner", "report": f"{MARK}-device", "read": f"{MARK}-reader"}
PATIENCE_S = 600.0
JOB = """job: late
source: {type: http, max_staleness: 5}
schema:
  features: {dep_delay: [-30, 60], origin: [EWR, JFK, LGA]}
  target: {column: late, classes: ["False", "True"]}
  subject: tailnum
model: {estimator: LDPASGDClassifier, budget: eps=1, scaling: none}
cap: eps=1
service:
  tokens:
"""

Request = tuple[str, bytes, dict[str, str], Callable[[httpx.Response], bool]]
"""Path, body, headers, and whether an answer is the right one."""


def problem(*statuses: int) -> Callable[[httpx.Response], bool]:
    def right(response: httpx.Response) -> bool:
        kind = response.headers.get("content-type")
        return response.status_code in statuses and kind == "application/problem+json"

    return right


def dead(*expected: str) -> Callable[[httpx.Response], bool]:
    def right(response: httpx.Response) -> bool:
        found = response.json() if response.status_code == 200 else {"dead": [], "learned": 1}
        reasons = [letter["reason"] for letter in found["dead"]]
        return found["learned"] == 0 and len(reasons) == 1 and (not expected or reasons[0] in expected)

    return right


def refused(response: httpx.Response) -> bool:
    """As a dead letter, or, if it is no JSON, with the whole call."""
    return dead()(response) or problem(400)(response)


def headers(scope: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[scope]}", "Content-Type": "application/json"} | more


def one(**fields: Any) -> bytes:
    return json.dumps({"records": [record(1, subject=MARK) | fields]}).encode()


def requests(report: dict[str, Any], rng: random.Random, version: Callable[[], int]) -> Iterator[tuple[str, Request]]:
    """Hostile requests without end, by kind. `report` is an honest report that was learned; `version` is the newest."""
    learn, reports = "/v1/models/late/learn", "/v1/models/late/reports"
    deep = "[" * 100_000
    while True:
        i = rng.randrange(10**12)
        broken = rng.choice(
            [b'{"records": [{"x": {"dep_delay": "%s', b"%s", b'{"records": "%s"}', b'["%s"]', b"\xff%s"]
        )
        yield "malformed call", (learn, broken % MARK.encode(), headers("learn"), problem(400))
        yield "malformed report", (reports, broken % MARK.encode(), headers("report"), problem(400))
        yield "deep", (learn, deep.encode(), headers("learn"), problem(400))
        inside = one(x={"dep_delay": 0}).replace(b'"dep_delay": 0', b'"dep_delay": ' + deep.encode() + b"]" * 100_000)
        yield "deep inside", (learn, inside, headers("learn"), lambda r: problem(400)(r) or dead()(r))
        for value in (MARK, 1e400, None, True, {MARK: MARK}):
            yield "value", (learn, one(x={"dep_delay": value, "origin": MARK}), headers("learn"), refused)
        yield "unknown field", (learn, one(**{f"{MARK}{i}": 1}), headers("learn"), problem(422))
        replay = {"Idempotency-Key": f"{MARK}-honest-0"}
        yield "replayed key", (learn, one(y=MARK), headers("learn", **replay), problem(422))
        yield "replayed id", (reports, body(report | {"subject": f"{MARK}{i}"}), headers("report"), dead("id_reused"))
        now = {"version": version()}  # it may be stale when the report comes
        for kind, change in (
            ("stale", {}),
            ("version", {"version": 10**9}),
            ("malformed", {"gradient": [1e300, 1, MARK]}),
            ("budget", now | {"budget": "eps=2"}),
            ("length", now | {"gradient": [0.5]}),
            ("impossible", now | {"gradient": [0.125 * i for i in range(len(report["gradient"]))]}),
        ):
            new = {"id": f"{MARK}{kind}{i}", "subject": f"{MARK}{i}"}
            yield kind, (reports, body(report | new | change), headers("report"), dead(kind, "stale"))
        yield "wrong scope", (learn, one(), headers("report"), problem(403))
        wrong = {"Authorization": f"Bearer {MARK}{i}"}
        yield "wrong token", (learn, one(), headers("learn", **wrong), problem(401))
        yield "no JSON", (learn, one(), headers("learn", **{"Content-Type": MARK}), problem(415))
        yield "no job", (f"/v1/models/{MARK}{i}/learn", one(), headers("learn"), problem(403, 404))
        yield "long key", (learn, one(), headers("learn", **{"Idempotency-Key": MARK * 100}), problem(400))
        if not i % 100:
            yield "too large", (learn, b" " * (MAX_BODY_BYTES + 1), headers("learn"), problem(413))
        if not i % 20:
            many = json.dumps({"records": [{}] * (MAX_RECORDS + 1)}).encode()
            yield "too many", (learn, many, headers("learn"), problem(413))


def body(report: dict[str, Any]) -> bytes:
    return json.dumps({"reports": [report]}).encode()


class Service:
    """The service as a process."""

    def __init__(self, folder: Path) -> None:
        lines = [
            f"    - {{sha256: {sha256(token.encode()).hexdigest()}, scopes: [{scope}]}}\n"
            for scope, token in TOKENS.items()
        ]
        (folder / "late.yaml").write_text(JOB + "".join(lines))
        with open(folder / "log", "wb") as log, open(folder / "out", "wb") as out:
            self.process = Forked(
                ["serve", "late.yaml", "--port", "0"], cwd=folder, env=environment(None), stdout=out, stderr=log
            )
        deadline = time.monotonic() + PATIENCE_S
        while not (address := (folder / "out").read_text()).endswith("\n"):
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.address = address.strip()

    @property
    def memory(self) -> int:
        """The resident memory, in KiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()


def honest(http: httpx.Client, call: int) -> int:
    """Five new people, whose records must be learned; returns the version."""
    people = [record(i, subject=f"{MARK}-{call}-{i}") for i in range(5)]
    key = {"Idempotency-Key": f"{MARK}-honest-{call}"}
    answer = http.post(
        "/v1/models/late/learn", content=json.dumps({"records": people}), headers=headers("learn", **key)
    )
    assert answer.json()["learned"] == 5, answer.text
    version: int = answer.json()["version"]
    return version


def slow(address: httpx.URL) -> socket.socket:
    """A call whose body stops in the middle."""
    line = socket.create_connection((address.host, address.port or 0))
    head = [f"{name}: {value}" for name, value in headers("learn").items()]
    text = ["POST /v1/models/late/learn HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 100", *head, "", MARK]
    line.sendall("\r\n".join(text).encode())
    return line


def attack(folder: Path, total: int, slow_calls: int, wait: bool) -> Counter[str]:
    """Send so many hostile requests, and check what the service did; returns the requests by kind."""
    done: Counter[str] = Counter()
    with Service(folder) as service, ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=service.address, timeout=PATIENCE_S))
        document = http.get("/v1/models/late/randomizer", headers=headers("report")).content
        half = LocalHalf(document, None)
        report = half.report({"dep_delay": 3.0, "origin": "JFK"}, "True", f"{MARK}-report", subject=MARK)
        answer = http.post("/v1/models/late/reports", content=body(report), headers=headers("report"))
        assert answer.json()["learned"] == 1
        for call in range(8):  # so that the report is stale
            version = honest(http, call)
        hostile = requests(report, random.Random(1), lambda: version)
        lines = [slow(httpx.URL(service.address)) for _ in range(slow_calls)]

        own = threading.local()  # a client that threads share may close a connection that another one reads

        def begin() -> None:
            own.http = stack.enter_context(httpx.Client(base_url=service.address, timeout=PATIENCE_S))

        def send(kind: str, path: str, content: bytes, given: dict[str, str], right: Any) -> str:
            response = own.http.post(path, content=content, headers=given)
            assert right(response), (kind, response.status_code, response.text)
            assert MARK not in response.text
            assert MARK not in str(response.headers)
            return kind

        calls = 8
        memory = 0
        with ThreadPoolExecutor(4, initializer=begin) as pool:
            while done.total() < total:
                batch = [next(hostile) for _ in range(100)]
                kinds = [pool.submit(send, kind, *request) for kind, request in batch]
                version = honest(http, calls)
                calls += 1
                done.update(kind.result() for kind in kinds)
                if done.total() >= total / 5 and not memory:
                    memory = service.memory
        grown = service.memory - memory
        if wait:
            for line in lines:
                line.settimeout(PATIENCE_S)
                assert b" 408 " in line.makefile("rb").readline()
        for line in lines:
            line.close()
        honest(http, calls)
        calls += 1
        service.process.terminate()
        assert service.process.wait(PATIENCE_S) == 0
    assert grown < 40 * 1024, f"{grown} KiB more after {total} requests"
    snapshot = Store.snapshot(folder / "late.db")
    assert (snapshot.counts.learned, snapshot.counts.refused) == (5 * calls + 1, 0)
    for path in folder.iterdir():
        assert MARK.encode() not in path.read_bytes(), path
    assert "Traceback" not in (folder / "log").read_text()
    return done


def test_some_hostile_requests(tmp_path: Path) -> None:
    done = attack(tmp_path, 300, 3, wait=False)
    assert len(done) >= 15


@pytest.mark.campaign
def test_hundred_thousand_hostile_requests(tmp_path: Path) -> None:
    done = attack(tmp_path, 100_000, 100, wait=True)
    assert done["too large"] >= 10
