"""mlflow itself reads an exported folder, in an environment without streamdp: it does not fit the locked versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from tests.support.exports import COMMON, DATES, HASHED, records
from tests.unit.serving.test_export import expected, learned, of_frame, same, write_folder

pytestmark = pytest.mark.campaign
READ = """
import json, sys
import mlflow, pandas
rows, *folders = sys.argv[1:]
frame = pandas.DataFrame(json.load(open(rows)))
models = [mlflow.pyfunc.load_model(folder) for folder in folders]
print(json.dumps([model.predict(frame).to_dict("list") for model in models]))
assert "streamdp" not in sys.modules
"""


def test_mlflow_predicts_what_the_library_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMDP_TEST_SEEDS", "1")
    python, rows, wanted = tmp_path / "env" / "bin" / "python", records(2_000), {}
    (tmp_path / "rows.json").write_text(json.dumps(rows.to_dict(as_series=False)))
    for target in ("log", "two", "three"):
        place = tmp_path / target
        place.mkdir()
        model = learned(place, COMMON | DATES | HASHED, target)
        folder = str(place / "folder")
        write_folder(model, Path(folder))
        wanted[folder] = expected(model, rows)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    needed = ["-r", f"{next(iter(wanted))}/requirements.txt"]
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *needed], check=True)
    command = [python, "-c", READ, tmp_path / "rows.json", *wanted]
    read = subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE)
    for found, answers in zip(json.loads(read.stdout), wanted.values(), strict=True):
        same(of_frame(pandas.DataFrame(found)), answers)
