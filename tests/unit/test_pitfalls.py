"""The examples of docs/pitfalls.md run as they stand."""

import re
import warnings
from typing import Any

import pytest

from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("title", SECTIONS)
def test_a_pitfall_has_a_severity_an_example_that_runs_and_advice(title: str) -> None:
    section = SECTIONS[title]
    assert section.strip().startswith("Severity: ")
    assert "What to do:" in section
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert "assert" in code
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        exec(compile(code, title, "exec"), names)
