"""Other programs read an exported model, in an environment without streamdp: they do not fit the locked versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from streamdp.serving.export import WRITERS, exported_model
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
JPMML = """
import json, sys
import pandas
from jpmml_evaluator import make_backend, make_evaluator
rows, *files = sys.argv[1:]
rows, backend, found = json.load(open(rows)), make_backend("jpype"), []
for file in files:
    model = make_evaluator(file, backend=backend).verify()
    columns = [field.name for field in model.getInputFields()]
    frame = pandas.DataFrame({name: pandas.Series(rows[name], dtype=object) for name in columns})
    shown = [field.name for field in model.getOutputFields()]
    found.append(model.evaluateAll(frame)[shown].astype(object).to_dict("list"))
print(json.dumps(found))
"""


@pytest.mark.parametrize("language", ["mlflow", "pmml"])
def test_another_program_predicts_what_the_library_predicts(language: str, tmp_path: Path) -> None:
    mlflow = language == "mlflow"
    features, rows = COMMON | (DATES | HASHED if mlflow else {}), records(100_000)
    python, wanted = tmp_path / "env" / "bin" / "python", {}
    (tmp_path / "rows.json").write_text(json.dumps(rows.to_dict(as_series=False)))
    for target in ("log", "two", "three"):
        place = tmp_path / target
        place.mkdir()
        model = learned(place, features, target)
        written = place / "model"
        if mlflow:
            write_folder(model, written)
        else:
            written.write_text(str(WRITERS["pmml"](exported_model(model), "")), encoding="utf-8")
        wanted[str(written)] = expected(model, rows)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    needed = ["-r", f"{next(iter(wanted))}/requirements.txt"] if mlflow else ["jpmml-evaluator", "jpype1", "pandas"]
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *needed], check=True)
    command = [python, "-c", MLFLOW if mlflow else JPMML, tmp_path / "rows.json", *wanted]
    read = subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE)
    for found, answers in zip(json.loads(read.stdout), wanted.values(), strict=True):
        same(of_frame(pandas.DataFrame(found)), answers)
