"""The stored test vectors of local reports are what this library computes, in Python and in JavaScript."""

import json
import math
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import node
from tests.support.paths import ROOT
from tests.support.vectors import PATH, rare, tail, tail_ratio, vectors

MODULE = ROOT / "clients" / "js" / "streamdp.js"
MINIFIED = MODULE.with_suffix(".min.js")


def differences(found: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ by more than rounding."""
    if isinstance(stored, dict) and isinstance(found, dict) and found.keys() == stored.keys():
        for key in stored:
            yield from differences(found[key], stored[key], f"{path}.{key}")
    elif isinstance(stored, list) and isinstance(found, list) and len(found) == len(stored):
        for i, (one, other) in enumerate(zip(found, stored, strict=True)):
            yield from differences(one, other, f"{path}.{i}")
    elif isinstance(stored, float) and isinstance(found, float):
        # the cap's cosine comes from a search; nothing else but it depends on where the search ends
        tolerance = 1e-5 if path.endswith(".gamma") else 1e-7 if path.endswith((".p", ".scale")) else 1e-11
        if not math.isclose(found, stored, rel_tol=tolerance, abs_tol=1e-14):
            yield path
    elif found != stored:
        yield path


@pytest.mark.slow
def test_python_reproduces_the_vectors() -> None:
    """A change of any of them is another protocol: it needs another version, and stored devices keep the old one."""
    stored = json.loads(PATH.read_text())
    shown = [(case["job"], json.dumps(case["document"]).encode(), drawn(case)) for case in stored["cases"]]
    surveyed = [(case["job"], json.dumps(case["document"]).encode(), drawn(case)) for case in stored["statistics"]]
    found = vectors(shown, surveyed)
    assert not list(differences(json.loads(json.dumps(found)), stored))


def drawn(case: dict[str, Any]) -> list[int]:
    return [draw["n"] for draw in case["reports"]]


def test_the_vectors_reach_the_rare_cases_of_both_samplers() -> None:
    cases = json.loads(PATH.read_text())["cases"]
    for job in ("laplace", "gaussian"):
        numbers = {n for case in cases if case["job"] == job for n in drawn(case)}
        assert any(tail(job, n) for n in numbers)
        assert any(rare(job, n) and not tail(job, n) for n in numbers)
    ratios = [tail_ratio("gaussian", n) for case in cases if case["job"] == "gaussian" for n in drawn(case)]
    assert min(ratios) <= 0.5
    assert any(0.5 < ratio < 1 for ratio in ratios)
    asked = {type(case["truth"]).__name__ for case in cases}
    assert asked == {"list", "bool"}


@pytest.mark.slow
@pytest.mark.parametrize("module", [MODULE, MINIFIED], ids=lambda path: path.name)
def test_javascript_reproduces_the_vectors_and_refuses_what_a_device_must(module: Path) -> None:
    ran = node("--test", "clients/js/vectors.test.mjs", STREAMDP_DEVICE=f"./{module.name}")
    told = ran.stdout.decode()
    assert ran.returncode == 0, told + ran.stderr.decode()
    counted = re.search(r"pass (\d+)\n", told)
    assert counted
    assert int(counted[1]) >= 40


def test_the_minified_module_is_small_and_of_the_present_source() -> None:
    assert MINIFIED.stat().st_size < 29_000
    head = MINIFIED.read_text(encoding="utf-8").partition("\n")[0]
    assert head.endswith(sha256(MODULE.read_bytes()).hexdigest()), "the source has changed: make device-js"


@pytest.mark.parametrize("module", [MODULE, MINIFIED], ids=lambda path: path.name)
def test_the_javascript_module_is_alone_and_has_no_other_randomness(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert not re.search(r"^\s*import\b|\bimport\(|\brequire\(|Math\.random", text, flags=re.MULTILINE)


def test_a_changed_vector_is_found() -> None:
    stored = json.loads(PATH.read_text())
    changed = json.loads(PATH.read_text())
    changed["cases"][0]["reports"][0]["report"]["gradient"][0] *= 1 + 1e-9
    assert list(differences(changed, stored)) == [".cases.0.reports.0.report.gradient.0"]


def test_every_exported_name_has_its_type() -> None:
    exported = set(re.findall(r"^export (?:async )?(?:class|const|function) (\w+)", MODULE.read_text(), re.MULTILINE))
    typed = MODULE.with_suffix(".d.ts").read_text()
    declared = set(re.findall(r"^export (?:declare )?(?:class|const|function) (\w+)", typed, re.MULTILINE))
    assert exported == declared
