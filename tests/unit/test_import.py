"""`import streamdp` is quick because it loads nothing heavy: checked by name, as clocks depend on the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from streamdp.errors import CLI_PACKAGES
from tests.support.paths import ROOT

# Each of them takes a tenth of a second or more to load, and is needed only later, or by some.
HEAVY = [
    "numba", "pandas", "polars", "sqlalchemy", "dp_accounting", "matplotlib", "pydantic", "sklearn", "typer", "rich",
]  # fmt: skip


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`, and the packages that they are in."""
    command = [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"]
    answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    names = answer.stdout.splitlines()[-1].split()
    return {name.partition(".")[0] for name in names} | set(names)


def test_import_leaves_the_heavy_packages_alone() -> None:
    found = loaded("import streamdp")
    assert "streamdp" in found
    assert not found.intersection(HEAVY)


def test_the_version_is_said_without_any_package() -> None:
    found = loaded("""import sys; from streamdp.cli.start import start; sys.argv = ["streamdp", "--version"]
try: start()
except SystemExit as end: assert not end.code""")
    assert "streamdp.cli.start" in found
    assert not found & {*HEAVY, "numpy", "scipy", "river", "yaml", "tenacity", "importlib.metadata"}


def test_the_check_sees_what_is_loaded() -> None:
    assert "polars" in loaded("import streamdp, polars")


def test_a_declared_estimator_is_built_without_the_database_and_the_readers() -> None:
    modules = loaded("from streamdp import LDPASGDRegressor; LDPASGDRegressor(features=['a']).learn_one({'a': 1}, 1)")
    assert not modules & {"numba", "pandas", "polars", "sqlalchemy", "dp_accounting", "matplotlib", "pydantic"}


ABSENT = """import sys, warnings
sys.modules |= dict.fromkeys({absent!r})
warnings.simplefilter("ignore")
import streamdp
from streamdp.cli.start import start
from streamdp.errors import NotAvailableError
model = streamdp.LDPASGDRegressor(features=dict(a=(0, 1), b=["x", "y"]), target=(0, 1))
model.learn_one(dict(a=0.5, b="x"), 1.0)
streamdp.LDPSGDRegressor(features=["a"], ledger=streamdp.Ledger("eps=1")).learn_one(dict(a=1), 1, subject="ann")
model.predict_one(dict(a=0.5, b="x"))
model.save({path!r})
assert streamdp.load({path!r}).weights == model.weights
import pandas
rows, y = pandas.DataFrame(dict(a=[0.5], b=["x"])), pandas.Series([1.0])
uses = [lambda: streamdp.datasets.insurance(2, seed=1)]
uses += [lambda: model.learn_many(rows, y), lambda: model.predict_many(rows)]
uses += [lambda: streamdp.Store, lambda: streamdp.Runner, lambda: streamdp.Worker]
for use in uses:
    try:
        use()
    except NotAvailableError as error:
        print(error)
job = "--trust process --budget eps=1 --feature a=0:1 --target y --target-bounds 0:3".split()
sys.argv = ["streamdp", "run", {csv!r}, *job, "--store", {csv!r} + ".db"]
start()
"""


@pytest.mark.slow
@pytest.mark.parametrize("absent", [CLI_PACKAGES, *((name,) for name in CLI_PACKAGES)], ids=" ".join)
def test_without_the_extra_cli_estimators_work_and_the_rest_says_what_to_install(
    absent: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,2\n")
    names = {"path": "model", "csv": "a.csv"}
    program = ABSENT.format(absent=absent, **{name: str(tmp_path / file) for name, file in names.items()})
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    sentence = " needs the extra cli: pip install '.[cli]' in a copy of streamdp's repository"
    said = [line.removesuffix(sentence) for line in answer.stdout.splitlines()]
    frames, classes = ["a table or a data frame"] * 3, ["streamdp.Runner", "streamdp.Worker"]
    alone = {"polars": frames, "tenacity": classes}
    if absent == ("rich",):  # for a display on a terminal
        assert '"learned": 1' in answer.stdout
    else:
        assert said == (frames + classes if absent == CLI_PACKAGES else alone.get(absent[0], [])), answer.stderr
        assert answer.stderr == f"streamdp: the command streamdp{sentence}\n"
        assert answer.returncode == 6


EXTRAS = {
    "": (set(), "cli.main cli.run cli.serve cli.init config.job runtime.runner serving.publish estimators"),
    "avro": ({"fastavro", "httpx"}, "connectors.avrorows connectors.schemaregistry"),
    "zstd": ({"zstandard"}, "connectors.bytestream"),
    "kafka": ({"kafka", "prometheus_client"}, "connectors.kafka cli.kafka_job cli.shuffle"),
    "kafka-fast": ({"kafka", "prometheus_client", "confluent_kafka"}, "connectors.kafkafast cli.kafka_job"),
    "redis": ({"redis"}, "connectors.redis config.redis"),
    "postgres": ({"psycopg"}, "database.postgres"),
    "service": ({"fastapi", "uvicorn", "prometheus_client", "rfc8785"}, "service.server"),
    "otel": ({"opentelemetry.sdk", "opentelemetry.exporter"}, "runtime.tracing"),
    "client": ({"httpx", "rfc8785"}, "client"),
    "sklearn": ({"sklearn"}, "sklearn"),
    "spark": ({"pyspark", "pyarrow", "nacl"}, "spark.learning"),
}
"""The packages of each extra, as they are imported, and modules that need no others."""


BASE = "streamdp, cryptography.hazmat.primitives.ciphers, orjson, pydantic, typer, rich, yaml"
FORK = """import os, sys, traceback
extras = {extras!r}
import {base}
assert not [name for packages, _ in extras.values() for name in packages if name in sys.modules]
children = {{}}
for extra, (blocked, modules) in extras.items():
    sys.stdout.flush()
    if not (child := os.fork()):
        sys.modules |= dict.fromkeys(blocked)
        try:
            for module in modules:
                __import__(module)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children[child] = extra
for child, extra in children.items():
    if os.waitpid(child, 0)[1]:
        print(extra or "the plain installation")
"""


@pytest.mark.slow
def test_what_an_extra_is_for_needs_no_other_extra() -> None:
    """Before, the service could not start without the extra kafka. Other packages that use one another count, too."""
    every = {"pandas"}.union(*(found for found, _ in EXTRAS.values()))
    extras = {}
    for extra, (packages, modules) in EXTRAS.items():
        blocked = every - packages - ({"pandas"} if extra == "spark" else set())  # pyspark needs it
        names = [name if name.startswith("connectors") else f"streamdp.{name}" for name in modules.split()]
        extras[extra] = sorted(blocked), names
    program = FORK.format(extras=extras, base=BASE)
    answer = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert answer.stdout == "", answer.stderr


@pytest.mark.slow
def test_who_has_no_ledger_does_not_load_its_compiled_code() -> None:
    compiled = {f"streamdp.ledger.{name}" for name in ("admission", "row_cache", "subject_gate")}
    learn = "import streamdp as s; s.LDPSGDRegressor(features=['a'], ledger={}).learn_one({{'a': 1}}, 1, subject='ann')"
    assert not loaded(learn.format("None")) & compiled
    found = loaded(learn.format("s.Ledger('eps=1')"))
    assert found >= compiled
    assert not found & {"streamdp.ledger.page_codec", "sqlalchemy", "sqlite3"}


@pytest.mark.slow
def test_reading_a_store_loads_no_readers(tmp_path: Path) -> None:
    """Each takes a fifth of the command's time or more. Before the first gradient, status calibrates one, by scipy."""
    data, store = tmp_path / "a.csv", str(tmp_path / "a.db")
    data.write_text("a,y\n" + "0.5,1\n" * 3000)
    run = ["run", str(data), "--trust", "nobody", "--feature", "a=-1:1", "--target", "y", "--target-bounds", "0:2"]
    subprocess.run(
        [sys.executable, "-m", "streamdp", *run, "--store", store], cwd=ROOT, check=True, capture_output=True
    )
    commands = "import sys; from streamdp.cli.main import run_command\nfor command in {}:\n"
    commands += f"    sys.argv = ['streamdp', command, {store!r}]\n    assert run_command() == 0\nprint()"
    others = {"polars", "rich", "sqlalchemy", "asyncio", "dp_accounting", "scipy.special"}
    others |= {"streamdp.estimators.pan", "streamdp.config.job", "streamdp.config.publish"}
    assert not loaded(commands.format("['status', 'statement', 'weights']")) & others
