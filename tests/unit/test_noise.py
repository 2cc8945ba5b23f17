"""The noise of tests follows from their names, in this process and in those of commands; false alarms are rare."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamdp import LDPASGDRegressor, PanPrivateRegressor
from tests.support.audit import FALSE_ALARM, epsilon_lower_bound
from tests.support.commands import streamdp
from tests.support.noise import NOISE
from tests.support.paths import ROOT


def learned(kind: type, name: str) -> list[float]:
    NOISE.begin(name)
    model = kind(features=["a"], batch_size=1) if kind is PanPrivateRegressor else kind(features=["a"])
    for x in (0.1, -0.2, 0.3):
        model.learn_one({"a": x}, x)
    assert model.guarantee.private
    return list(model.theta)


@pytest.mark.parametrize("kind", [LDPASGDRegressor, PanPrivateRegressor])
def test_a_name_gives_the_same_noise_and_another_name_another(kind: type) -> None:
    assert learned(kind, "one") == learned(kind, "one") != learned(kind, "two")


@pytest.mark.real_noise
def test_a_test_of_the_words_gets_those_of_the_operating_system() -> None:
    assert len({tuple(_theta()) for _ in range(2)}) == 2


def _theta() -> list[float]:
    model = LDPASGDRegressor(features=["a"])
    model.learn_one({"a": 0.5}, 0.5)
    return list(model.theta)


@pytest.mark.slow
def test_commands_have_the_noise_of_their_test_and_no_two_the_same(tmp_path: Path) -> None:
    job = (
        "job: one\nsource: {path: ../data.csv}\nstore: job.db\n"
        "model: {estimator: LDPASGDRegressor, scaling: declared}\n"
        "schema:\n  target: {column: y, bounds: [0, 1]}\n  features: {a: [0, 1]}\n"
    )
    (tmp_path / "data.csv").write_text("a,y\n" + "0.5,1\n" * 2000)

    def weights(name: str, folder: str) -> str:
        NOISE.begin(name)
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.yaml").write_text(job)
        assert streamdp(tmp_path / folder, "run", "job.yaml")[0] == 0
        return streamdp(tmp_path / folder, "weights", "job.db", "--json")[1]

    assert weights("one", "a") == weights("one", "b") != weights("two", "c")


def false_alarms(path: Path) -> Iterator[float]:
    """The probabilities that a file's tests state: the limits of p-values, and numbers after the words."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(ast.Attribute(attr="pvalue"), [ast.Gt() | ast.GtE()], [ast.Constant(float(limit))]):
                yield limit
    for number in re.findall(r"[Ff]alse alarms?\b[^.]*?(\d[\d.]*e-\d+)", text):
        yield float(number)


@pytest.mark.slow
def test_no_test_states_a_larger_false_alarm_than_one_in_a_million() -> None:
    """An audit that allows more is refused by `tests/support/audit.py`."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    stated = [(path.name, found) for path in files for found in false_alarms(path)]
    assert len(stated) > 30
    assert [each for each in stated if each[1] > FALSE_ALARM] == []
    with pytest.raises(ValueError, match="at most 1e-06"):
        epsilon_lower_bound(np.zeros(9), np.ones(9), false_alarm=1e-3)
