"""An exported model as a folder that mlflow reads: the file MLmodel, the document and its code.

The code needs mlflow and pandas, and nothing of streamdp. Python keeps one module of a name, so the name of the copied
package has a digest of its text: two models that different releases of streamdp exported keep their own code.
"""

import hashlib
import json
import platform
from pathlib import Path

import yaml

from streamdp.data.dates import EPOCHS
from streamdp.serving import exported, exported_mlflow
from streamdp.serving.added import Document


def mlflow_files(document: Document, table: str) -> dict[str, str]:
    """Return the text of each file of a `document` by its path in the folder; there is no `table`.

    The last one is MLmodel: a folder without it is not a model.
    """
    loader, code = (Path(str(one.__file__)).read_text(encoding="utf-8") for one in (exported_mlflow, exported))
    package = f"streamdp_exported_{hashlib.sha256((loader + code).encode()).hexdigest()[:12]}"
    inputs = [given | {"column": str(given["column"])} for given in document["inputs"]]  # mlflow's columns are texts
    python = platform.python_version()
    loaded = {"loader_module": package, "code": "code", "data": "model.json", "python_version": python}
    description = {
        "flavors": {"python_function": loaded | {"env": {"virtualenv": "python_env.yaml"}}},
        "signature": {"inputs": json.dumps(_inputs(inputs)), "outputs": json.dumps(_outputs(document))},
        "metadata": {"statement": document["statement"]},
    }
    environment = {"python": python, "dependencies": ["-r requirements.txt"]}
    return {
        f"code/{package}/__init__.py": loader,
        f"code/{package}/exported.py": code,
        "model.json": json.dumps({**document, "inputs": inputs}, indent=1, ensure_ascii=False) + "\n",
        "requirements.txt": "mlflow-skinny\npandas\n",
        "python_env.yaml": yaml.safe_dump(environment, sort_keys=False),
        "MLmodel": yaml.safe_dump(description, sort_keys=False, allow_unicode=True),
    }


def _inputs(inputs: list[dict[str, object]]) -> list[dict[str, object]]:
    """The raw columns: doubles if all that is made of them are numbers, or times in numbers; otherwise texts."""
    texts = {given["column"] for given in inputs if given["type"] != "number" and given.get("format") not in EPOCHS}
    names = dict.fromkeys(given["column"] for given in inputs)
    return [{"name": n, "type": "string" if n in texts else "double", "required": True} for n in names]


def _outputs(document: Document) -> list[dict[str, object]]:
    classes = document["classes"]
    kinds = {type(label) for label in classes or (0.0,)}
    kind = {bool: "boolean", int: "long", float: "double"}.get(kinds.pop() if len(kinds) == 1 else str, "string")
    shares = [f"probability of {label}" for label in classes] if document["probabilities"] else []
    named = {"prediction": kind} | dict.fromkeys(shares, "double")
    return [{"name": name, "type": kind, "required": True} for name, kind in named.items()]
