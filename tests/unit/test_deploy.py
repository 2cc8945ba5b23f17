"""The files of deploy/: what the image and the units name exists, and the units can write where a job's store lies."""

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import streamdp
from deploy import release_check
from streamdp.cli.main import app
from tests.support.paths import ROOT

UNITS = sorted((ROOT / "deploy").glob("*.service"))
IMAGE = (ROOT / "deploy" / "Containerfile").read_text()


def unit(path: Path) -> dict[str, str]:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string(path.read_text())
    return dict(found["Service"])


def check_command(words: list[str]) -> None:
    """The command and its options exist."""
    assert Path(words[0]).name == "streamdp"
    command = get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("path", UNITS, ids=[path.name for path in UNITS])
def test_a_unit_writes_only_where_its_job_and_the_store_beside_it_lie(path: Path) -> None:
    found = unit(path)
    words = found["ExecStart"].split()
    check_command(words)
    assert found["ProtectSystem"] == "strict"
    assert found["WorkingDirectory"] == f"/var/lib/{found['StateDirectory']}" == str(Path(words[2]).parent)
    assert int(found["LimitNOFILE"]) >= 65536
    assert int(found["TimeoutStopSec"]) > {"serve": 10, "run": 30}[words[1]]


@pytest.mark.parametrize("path", UNITS, ids=[path.name for path in UNITS])
def test_systemd_knows_the_settings_of_a_unit(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace("/opt/streamdp/bin/streamdp", f'"{sys.executable}"'))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if path.stem in line]  # it also reads other units of the machine
    assert not (done.returncode and ours), ours
    assert not [line for line in ours if "Unknown" in line]


def test_kubernetes_runs_the_image_as_it_is_described() -> None:
    stateful, service = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    check_command(["streamdp", "serve", *container["args"]])
    assert json.dumps(container["args"]) in IMAGE
    assert f"WORKDIR {container['volumeMounts'][0]['mountPath']}\n" in IMAGE
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in IMAGE
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert stateful["spec"]["replicas"] == 1  # an SQLite store has one writer


def test_the_image_runs_a_command_that_exists_with_extras_that_exist() -> None:
    check_command(re.findall(r'"([^"]+)"', " ".join(re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])", IMAGE, re.MULTILINE))))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r"/src\[(.*?)\]", IMAGE)
    assert set(named.split(",")) <= set(extras)
    assert "HEALTHCHECK" in IMAGE


def test_no_history_environment_store_or_key_comes_into_the_image_and_no_source_is_left_out() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if line and not line.startswith("#")]

    def left_out(name: str) -> bool:
        parts = name.split("/")
        heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return any(fnmatch(head, p) or fnmatch(f"/{head}", p.replace("**", "*")) for head in heads for p in patterns)

    for name in (".git/config", ".venv/bin/python", "late.db", "jobs/late.db-wal", "late.db.key", "tls/a.pem", ".env"):
        assert left_out(name), name
    needed = ["pyproject.toml", "setup.py", "build_backend.py", "MANIFEST.in", "README.md", "LICENSE"]
    sources = [path for room in ("streamdp", "connectors") for path in (ROOT / room).rglob("*") if path.is_file()]
    needed += [
        str(path.relative_to(ROOT)) for path in sources if path.suffix in (".py", ".pyx", ".pxd", ".js", ".html")
    ]
    assert [name for name in needed if left_out(name)] == []


def test_the_files_of_the_repository_have_one_version() -> None:
    found = release_check.versions(ROOT)
    names = ("streamdp.__version__", "CHANGELOG.md, its first release", "CITATION.cff")
    assert {found[name] for name in names} == {streamdp.__version__}
