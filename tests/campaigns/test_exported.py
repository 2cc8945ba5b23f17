"""Other programs read an exported model, in an environment without streamdp: they do not fit the locked versions."""

import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from tests.support.exports import COMMON, DATES, HASHED, records
from tests.unit.serving.test_export import expected, learned, of_frame, same, write_folder

pytestmark = pytest.mark.campaign
MLFLOW = """
import json, sys
import mlflow, pandas
rows, *folders = sys.argv[1:]
frame = pandas.DataFrame(json.load(open(rows)))
models = [mlflow.pyfunc.load_model(folder) for folder in folders]
print(json.dumps([model.predict(frame).to_dict("list") for model in models]))
assert "streamdp" not in sys.modules
"""


def test_mlflow_predicts_what_the_library_predicts(tmp_path: Path) -> None:
    rows = records(100_000)
    python, wanted = tmp_path / "env" / "bin" / "python", {}
    (tmp_path / "rows.json").write_text(json.dumps(rows.to_dict(as_series=False)))
    for target in ("log", "two", "three"):
        place = tmp_path / target
        place.mkdir()
        model = learned(place, COMMON | DATES | HASHED, target)
        write_folder(model, place / "model")
        wanted[str(place / "model")] = expected(model, rows)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    needed = ["-r", f"{next(iter(wanted))}/requirements.txt"]
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *needed], check=True)
    command = [python, "-c", MLFLOW, tmp_path / "rows.json", *wanted]
    read = subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE)
    for found, answers in zip(json.loads(read.stdout), wanted.values(), strict=True):
        same(of_frame(pandas.DataFrame(found)), answers)
