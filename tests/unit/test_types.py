"""A type checker sees wrong names: of losses, mechanisms, trust, methods and of `streamdp` itself."""

import re
from pathlib import Path

import pytest
from mypy import api

WRONG = """\
import streamdp
from streamdp import stats

streamdp.LDPASGDRegressor(loss="hubr")
streamdp.LDPASGDRegressor(mechanism="gausian")
streamdp.LDPASGDRegressor(clock="record")
streamdp.UserLevelLDPClassifier(centre="one")
streamdp.PanPrivateRegressor(method="sgd")
streamdp.WindowedRegressor(method="smooth")
streamdp.ShuffleRegressor(change="folow")
streamdp.sklearn.PrivateRegressor(trust="windo")
streamdp.Classifier("nobdy")
stats.Mean((0, 1), trust="shufler")
streamdp.LDPASGDRegresor()
"""
RIGHT = """\
streamdp.ShuffleRegressor("huber", method="sgd", change="ignore")
streamdp.WindowedRegressor(streamdp.Quantile(tau=0.9), method="smoothed", scaling="private")
streamdp.sklearn.PrivateClassifier(loss="hinge", trust="nobody")
streamdp.stats.Mean((0, 1), trust="process")
"""


CONFIG = """\
[mypy]
strict = True
follow_imports = skip
ignore_missing_imports = True
[mypy-streamdp.*]
follow_imports = silent
[mypy-numpy.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
"""Types of other packages say nothing here, and take nine tenths of the time."""


@pytest.mark.slow
def test_a_type_checker_sees_wrong_names(tmp_path: Path) -> None:
    """Before, any text was right for most of them, and so was any name of `streamdp`."""
    (tmp_path / "wrong.py").write_text(WRONG + RIGHT)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    cache = Path(__file__).parents[2] / ".mypy_cache" / "types"  # its own: others may write the usual one
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(cache)]
    said, trouble, _ = api.run([*options, str(tmp_path / "wrong.py")])
    assert not trouble
    assert [int(line) for line in re.findall(r"wrong\.py:(\d+): error", said)] == [*range(4, 15)], said
