"""Fixtures: real servers, which start when a test first asks for them and end with the session; the command line."""

import gc
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: small matrices take ten times as long on busy cores

import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy.engine import make_url

from servers.broker import Broker, create_topic
from servers.postgres import Postgres
from servers.redis import Redis
from streamdp.config.definition import SEEDS_ALLOWED
from streamdp.ledger.subject_key import ENVIRONMENT
from tests.support.commands import Quick
from tests.support.noise import NOISE
from tests.support.order import in_parts
from tests.support.proxy import Proxy
from tests.support.servers import RunningBroker, RunningPostgres
from tests.support.waiting import PATIENCE_S

os.environ[SEEDS_ALLOWED] = "1"  # jobs of tests may have seeds
_DIRECT = ",".join(filter(None, (os.environ.get("no_proxy"), os.environ.get("NO_PROXY"), "127.0.0.1,localhost")))
os.environ |= {"no_proxy": _DIRECT, "NO_PROXY": _DIRECT}  # no proxy can reach the servers of tests

# Machines may be busy. The suite tries the same few examples in every run, and the campaign many others each time.
PROFILE: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("streamdp", **PROFILE, derandomize=True, max_examples=15)
settings.register_profile("campaign", **PROFILE, max_examples=300)
settings.load_profile("streamdp")

_SERVERS = {"broker", "broker_behind_proxy", "postgres", "redis_server", "server_database"}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors: a quarter of the time, slow tests wait for servers and processes.

    A container with few processors may show all those of its host, so there are at most 8.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8) + ("not slow" not in config.option.markexpr)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of campaigns only is not loaded for a run without them: every worker loads what it collects."""
    if "not campaign" not in config.option.markexpr or not collection_path.match("test_*.py"):
        return None
    return "\npytestmark = pytest.mark.campaign\n" in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Tests and their helpers have no examples, for which doctest would load and search each module."""
    return [found for found in (yield) if isinstance(found, pytest.Module)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The noise of a test follows from its name, so that no result depends on luck."""
    if item.get_closest_marker("real_noise"):
        NOISE.end()
    else:
        NOISE.begin(item.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Iterator[None]:
    """The noise of a fixture that several tests share does not depend on the test that comes first."""
    name = NOISE.name
    if name and fixturedef.scope != "function":
        NOISE.begin(f"{fixturedef.baseid} {fixturedef.argname} {request.param_index}")
        yield
        NOISE.begin(name)
    else:
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """What starts a server is slow. When the tests that run are known, they are ordered by what they start."""
    for item in items:
        if not _SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    yield
    if workers := getattr(config, "workerinput", {}).get("workercount"):
        items[:] = in_parts(items, workers)


gc.disable()  # what is loaded before the tests begin stays


def pytest_collection_finish() -> None:
    """The garbage collector does not look again at what was loaded."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def patient_clients() -> Iterator[None]:
    """A broker of a busy machine may answer late."""
    from connectors.kafkaclient import CONNECTION

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONNECTION, "bootstrap_timeout_ms", int(1000 * PATIENCE_S))
        yield


@pytest.fixture(scope="session")
def broker_behind_proxy(
    tmp_path_factory: pytest.TempPathFactory, patient_clients: None
) -> Iterator[tuple[Broker, Proxy]]:
    """A broker of our own with all listeners, and the proxy in front of one that needs no password."""
    ours = Broker(tmp_path_factory.mktemp("kafka"), secure=True)
    with Proxy(ours.port("PROXIED")) as proxy:
        ours.advertised["PROXIED"] = proxy.port
        with ours:
            yield ours, proxy
            ours.kill()  # its data are not used again


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, patient_clients: None) -> Broker | RunningBroker:
    """A Kafka cluster with a `.bootstrap`: that of STREAMDP_KAFKA (host:port), or one of our own."""
    if address := os.environ.get("STREAMDP_KAFKA"):
        return RunningBroker(address)
    ours: Broker = request.getfixturevalue("broker_behind_proxy")[0]
    return ours


@pytest.fixture(scope="session")
def make_topic(broker: Broker | RunningBroker) -> Callable[..., str]:
    """`make_topic(partitions=1, config=None)` makes a topic of a name never used before, and returns the name."""

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        create_topic(broker.bootstrap, name, partitions, config)
        return name

    return make


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres | RunningPostgres]:
    """A PostgreSQL database with a `.url`: that of STREAMDP_POSTGRES, or one of our own."""
    if url := os.environ.get("STREAMDP_POSTGRES"):
        yield RunningPostgres(url)
        return
    ours = Postgres(tmp_path_factory.mktemp("postgres"))
    with ours:
        yield ours


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis server of our own."""
    with Redis(tmp_path_factory.mktemp("redis")) as ours:
        yield ours


@pytest.fixture
def server_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new database on a server, with a subject key in the environment."""
    monkeypatch.setenv(ENVIRONMENT, "5a" * 32)
    server = request.getfixturevalue("postgres").url
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a store: a file, or a new database on a server with a subject key in the environment."""
    if request.param == "sqlite":
        return str(tmp_path / "job.db")
    url: str = request.getfixturevalue("server_database")
    return url


@pytest.fixture
def settings_of_git(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """None of the user; and the clone may belong to another user."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    settings = tmp_path_factory.mktemp("git") / "config"
    settings.write_text("[safe]\ndirectory = *\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Quick:
    """Runs the command in this process."""
    return Quick(monkeypatch, capsys, tmp_path)
