"""Alert rules and the Grafana board name only metrics and labels that a real worker and a real service show."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from servers import programs
from streamdp import LDPASGDRegressor
from streamdp.data.records import Shard, Stall
from streamdp.errors import SourceUnavailableError
from streamdp.runtime.prometheus import Metrics
from streamdp.runtime.worker import Worker
from streamdp.store.store import Store
from tests.support.memory import BAD, MemoryShards
from tests.support.paths import ROOT
from tests.support.service import client, job, record

RULES = ROOT / "deploy" / "alerts.yml"
RULE_TESTS = Path(__file__).with_name("alerts_test.yml")
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
ADDED = {"instance", "le"}
"""Labels that a scrape adds, and the bound of a histogram's bucket."""

_NAME = re.compile(r"\bstreamdp_\w+")
_SELECTOR = re.compile(r"\b(streamdp_\w+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)")


def promtool(*arguments: str) -> None:
    program = programs.program("promtool")
    assert program, "promtool is missing; `python servers/programs.py` says how to install it"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def samples(text: str) -> dict[str, set[str]]:
    """The labels of each metric."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


class Faulty(MemoryShards):
    """The first poll fails, as if the broker were away, and the shard stalls."""

    failed = False

    def poll(self, max_records: int, timeout_s: float) -> Any:
        if not self.failed:
            self.failed = True
            raise SourceUnavailableError("no answer")
        return super().poll(max_records, timeout_s)

    def stalls(self) -> list[Stall]:
        return [Stall("t", 0, "no_answer", "waits for an answer of the brokers", 12.0)]


def worker_metrics(folder: Path) -> str:
    """What a worker shows that has learned, met bad records, and retried."""
    shard = Shard("t", 0)
    items = [BAD, *[({"a": 1.0}, 0.5, None, None)] * 50]
    source = Faulty({shard: items}, ["a"], sleep=lambda _: None)
    metrics = Metrics(1.0, lambda positions: dict.fromkeys(positions, 0))
    with Store(folder / "job.db", "job", "f", shared=True) as store:
        Worker(
            source, lambda: LDPASGDRegressor(features=["a"], budget="eps=1"), store, observers=[metrics]
        ).run(max_records=51)  # fmt: skip
    return urllib.request.urlopen(f"http://127.0.0.1:{metrics.serve(0)}/metrics", timeout=30).read().decode()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every metric of the product, with the labels that Prometheus gives it."""
    folder = tmp_path_factory.mktemp("metrics")
    found = samples(worker_metrics(folder))
    with client(job(folder)) as http:
        assert http.post("/v1/models/late/learn", json={"records": [record(1)]}).status_code == 200
        for name, labels in samples(http.get("/metrics").text).items():
            renamed = {"exported_job" if label == "job" else label for label in labels}
            found[name] = found.get(name, set()) | renamed
    assert all(name.startswith("streamdp_") for name in found)
    return found


def unknown(expression: str, shown: dict[str, set[str]]) -> list[str]:
    """Metrics and labels of an expression that the product does not show."""
    names = set(_NAME.findall(expression))
    bad = [name for name in sorted(names) if name not in shown]
    for name, selector in _SELECTOR.findall(expression):
        bad += [
            f"{name}{{{label}}}" for label in _LABEL.findall(selector) if label not in shown.get(name, set()) | ADDED
        ]
    known = set().union(*(shown.get(name, set()) for name in names)) | ADDED
    for labels in _GROUPED.findall(expression):
        bad += [label.strip() for label in labels.split(",") if label.strip() not in known]
    return bad


def test_rules_are_valid_and_come_when_they_should(tmp_path: Path) -> None:
    for file in (RULES, RULE_TESTS):
        shutil.copy(file, tmp_path)
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(tmp_path / RULE_TESTS.name))


def test_rules_name_what_the_product_shows(shown: dict[str, set[str]]) -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len(rules) == 11
    assert {rule["alert"]: bad for rule in rules if (bad := unknown(rule["expr"], shown))} == {}
    used = {label for rule in rules for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))}
    assert used <= set().union(*shown.values()) | ADDED


def test_every_rule_has_a_test_with_real_series(shown: dict[str, set[str]]) -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tests = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    series = {item["series"] for test in tests for item in test["input_series"]}
    assert [bad for one in series if (bad := unknown(one, shown))] == []
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    rests = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    assert fires == rests == {rule["alert"] for rule in rules}


@pytest.mark.parametrize("board", BOARDS, ids=[path.stem for path in BOARDS])
def test_a_board_is_valid_and_names_what_the_product_shows(
    tmp_path: Path, shown: dict[str, set[str]], board: Path
) -> None:
    panels = json.loads(board.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= 12
    assert {text: bad for text in expressions if (bad := unknown(text, shown))} == {}
    alerted = set(_NAME.findall(RULES.read_text()))
    assert alerted <= {name for text in expressions for name in _NAME.findall(text)}
    legends = {label for p in panels for t in p["targets"] for label in re.findall(r"\{\{(\w+)\}\}", t["legendFormat"])}
    assert legends <= set().union(*shown.values()) | ADDED
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(places) == len({p["id"] for p in panels})
    rules = [
        {"record": f"board:{i}", "expr": text.replace("$__rate_interval", "5m")} for i, text in enumerate(expressions)
    ]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "board.yml"))


def lost(given: Any, known: Any, path: str = "") -> list[str]:
    """What Grafana's types do not keep of a document."""
    if isinstance(given, dict) and isinstance(known, dict):
        return [bad for key, value in given.items() for bad in lost(value, known.get(key), f"{path}/{key}")]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        return [bad for i, pair in enumerate(zip(given, known, strict=True)) for bad in lost(*pair, f"{path}/{i}")]
    return [] if given == known else [path]


def in_grafana(board: Any) -> Any:
    """A board after Grafana's own types have read and written it."""
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_grafana_knows_every_setting_of_a_board(path: Path) -> None:
    board = json.loads(path.read_text())
    assert lost(board, in_grafana(board)) == []
    board["panels"][1]["gridPosition"] = board["panels"][1].pop("gridPos")
    board["panels"][0]["targets"][0]["legend"] = "{{outcome}}"
    assert set(lost(board, in_grafana(board))) == {"/panels/1/gridPosition", "/panels/0/targets/0/legend"}


def test_a_renamed_metric_is_found(shown: dict[str, set[str]]) -> None:
    rest = {name: labels for name, labels in shown.items() if name != "streamdp_lag"}
    text = RULES.read_text()
    assert unknown(text, rest) == ["streamdp_lag"]
    assert unknown('streamdp_records_total{colour="red"}', shown) == ["streamdp_records_total{colour}"]
