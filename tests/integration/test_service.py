"""`streamdp serve` as a process: SIGTERM, kill -9 and retries. Every acknowledged record counts exactly once."""

import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from servers.process import free_ports
from streamdp.client import Client
from streamdp.config.job import load_config
from streamdp.store.store import Store
from tests.support.busy import refused_as_busy
from tests.support.commands import environment
from tests.support.proxy import Proxy
from tests.support.schemas import in_schema
from tests.support.service import JOB, PATIENCE_S, SECRET, ServiceProcess, client, job, record
from tests.support.waiting import wait_until
from tests.support.zygote import Forked

MARK = "marked"
"""A part of every subject. Neither the log nor the store may show it."""


@contextmanager
def serving(folder: Path, port: int = 0, log_level: str = "info") -> Iterator[tuple[Forked, str]]:
    """The process and its address."""
    (folder / "late.yaml").write_text(JOB)
    command = ["serve", "late.yaml", "--port", str(port), "--log-level", log_level]
    with open(folder / "log", "ab") as log:
        process = Forked(command, cwd=folder, env=environment(None), stderr=log)
    try:
        address = process.stdout.readline().strip()
        assert address, (folder / "log").read_text()
        yield process, address
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def subjects(caller: int, call: int) -> list[dict[str, Any]]:
    """A call of five people whom no other call has. Each may spend once, so a record that counts twice is refused."""
    return [record(i, subject=f"{MARK}-{caller}-{call}-{i}") for i in range(5)]


def counted(folder: Path) -> tuple[int, int, int]:
    snapshot = Store.snapshot(folder / "late.db")
    return snapshot.counts.learned, snapshot.counts.refused, snapshot.counts.dead_letters


def test_sigterm_answers_what_was_accepted_and_exits(tmp_path: Path) -> None:
    acknowledged = 0
    lock, begun = threading.Lock(), threading.Semaphore(0)
    with serving(tmp_path, log_level="error") as (process, address):

        def call(caller: int) -> None:
            nonlocal acknowledged
            with Client(address, retry_s=0) as client:
                for i in range(10_000):
                    try:
                        answer = client.learn("late", subjects(caller, i))
                    except Exception:  # noqa: BLE001 - the service has stopped
                        return
                    with lock:
                        acknowledged += answer["learned"]
                    begun.release()

        with ThreadPoolExecutor(8) as pool:
            for caller in range(8):
                pool.submit(call, caller)
            for _ in range(40):
                assert begun.acquire(timeout=PATIENCE_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
    learned, refused, dead = counted(tmp_path)
    assert (refused, dead) == (0, 0)
    # All that was accepted was answered, so nothing more is in the store than was acknowledged.
    assert learned == acknowledged >= 200
    assert "/learn" not in (tmp_path / "log").read_text()  # calls are of level INFO


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "job 'late' has no tokens, so --host must be a loopback address"),
        (["--tls-cert", "late.yaml"], "--tls-cert and --tls-key go together"),
        (["--tls-cert", "late.yaml", "--tls-key", "late.yaml"], "expected PEM files with a certificate and its key"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, quick: Any, arguments: list[str], message: str) -> None:
    (tmp_path / "late.yaml").write_text(JOB)
    code, _, errors = quick("serve", "late.yaml", "--port", "0", *arguments)
    assert code == 2
    assert message in errors
    code, _, errors = quick("run", "late.yaml")
    assert (code, "use `streamdp serve`" in errors) == (2, True)


def test_a_store_that_another_process_holds_is_refused(tmp_path: Path, quick: Any) -> None:

    (tmp_path / "late.yaml").write_text(JOB)
    config = load_config(tmp_path / "late.yaml")
    with Store(config.store_path, "late", config.fingerprint(), cap=config.cap_budget, config=config.text()):
        code, _, errors = quick("serve", "late.yaml", "--port", "0")
    assert code == 4
    assert SECRET not in errors


def test_a_second_service_of_a_file_is_refused_and_one_after_it_remembers(tmp_path: Path) -> None:
    config = job(tmp_path)
    with client(config) as http:
        first = http.post("/v1/models/late/learn", json={"records": [record(1)]}, headers={"Idempotency-Key": "k"})
        assert first.json()["learned"] == 1
        with refused_as_busy(), client(config):
            pass
    with client(config) as http:
        again = http.post("/v1/models/late/learn", json={"records": [record(1)]}, headers={"Idempotency-Key": "k"})
        assert again.json() == first.json()
    (snapshot,) = Store.snapshots(config.store_path, "late")
    assert snapshot.counts.learned == 1


def test_a_silent_database_is_told_and_holds_nobody(tmp_path: Path, postgres: Any) -> None:
    """The connections stay open, and nothing passes: the service was ready, and callers waited, for a minute."""
    name = f"silent{uuid.uuid4().hex[:8]}"
    settings = {
        "late.yaml": JOB.replace("job: late", f"job: {name}"),
        "other.yaml": JOB.replace("job: late", "job: other"),
    }
    with Proxy(make_url(postgres.url).port or 5432) as proxy:
        url = make_url(postgres.url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        settings["late.yaml"] += f'store: "{in_schema(url, name)}"\n'
        for file, text in settings.items():
            (tmp_path / file).write_text(text)
        port = free_ports(tmp_path, ("service",))["service"]
        service = ServiceProcess(tmp_path, port, "late.yaml", "other.yaml", STREAMDP_SUBJECT_KEY="ab" * 32)
        with httpx.Client(base_url=service.address, timeout=PATIENCE_S) as http, ThreadPoolExecutor(1) as pool:

            def learn(job_name: str, i: int) -> httpx.Response:
                body = {"records": [record(i)]}
                return http.post(f"/v1/models/{job_name}/learn", json=body, headers={"Idempotency-Key": f"k{i}"})

            assert learn(name, 1).json()["learned"] == 1
            proxy.flows.clear()
            waiting = pool.submit(learn, name, 2)
            assert waiting.result().status_code == 503
            answer = http.get("/readyz")
            assert (answer.status_code, f"job {name!r}: the database has not answered" in answer.text) == (503, True)
            assert http.get("/readyz?job=other").status_code == 200
            assert learn("other", 1).json()["learned"] == 1
            assert learn(name, 3).status_code == 503
            proxy.flows.set()  # the commit that hung ends, and the retry of its call counts once
            wait_until(lambda: http.get("/readyz").status_code == 200, PATIENCE_S)
            for _ in range(2):
                assert learn(name, 2).json()["learned"] == 1
            assert http.get(f"/v1/models/{name}").json()["learned"] == 2
            proxy.flows.clear()
            pool.submit(learn, name, 4)
            wait_until(lambda: http.get("/readyz").status_code == 503, PATIENCE_S)
            assert service.end(signal.SIGTERM) == 4
    log = (tmp_path / f"log-{port}").read_text()
    assert "Traceback" not in log
    assert "did not end its last call" in log
