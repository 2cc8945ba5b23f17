"""A committed or saved model as one document that other programs read, and the same in other languages.

The document has all that predicts: what each raw column may be (`inputs`), the encoded columns as pieces with their
constants (`columns`, see `data.transforms`), the weights of these columns (`outputs`), and the statement. All writers
follow it, so categories, missing values, clipping and transforms are the same in each. It is post-processing of what
the model shows anyway: no record and no noise is in it.
"""

import json
import math
import re
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamdp.config.definition import Definition
from streamdp.data.dates import EPOCHS, NAMES
from streamdp.data.declaration import MISSING, OTHER, Declaration
from streamdp.data.transforms import CURVES, Piece
from streamdp.errors import ConfigError, needs, suggestion
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.targets import Classifier
from streamdp.serving import exported
from streamdp.serving.added import PREDICTION, PREFIX, SHARE, Document
from streamdp.serving.export_mlflow import mlflow_files
from streamdp.serving.export_onnx import onnx_text
from streamdp.serving.export_sql import sql
from streamdp.serving.publish import need_model
from streamdp.serving.snapshots import Model

if TYPE_CHECKING:
    from streamdp.data.schema import Schema

_SAME = {"F": "%Y-%m-%d", "D": "%m/%d/%y", "x": "%m/%d/%y", "v": "%d-%b-%Y", "R": "%H:%M", "T": "%H:%M:%S", "n": " "}
_SAME |= {"X": "%H:%M:%S", "r": "%I:%M:%S %p", "c": "%a %b %d %H:%M:%S %Y", "t": " ", "h": "%b", "e": "%d", "k": "%H"}
_SAME |= {"l": "%I", "P": "%p", ":z": "%z", "::z": "%z"}
"""Codes of dates that are others in short, or that are read as another one is."""
FORMAT, VERSION = "streamdp linear model", 1


Written = str | bytes | dict[str, str]
Writer = Callable[[Document, str], Written]
"""Writes a document; the second argument is SQL's table. Raises `ConfigError` for what the language cannot say."""


class Export(NamedTuple):
    """A language that models are written in."""

    write: Writer
    needs: str | None = None  # the package that it needs, and the extra that has it

    @property
    def installed(self) -> bool:
        """Whether what it needs is there."""
        return self.needs is None or find_spec(self.needs) is not None


def exported_model(model: Model | Estimator) -> Document:
    """Return the document of a committed or a loaded model.

    Raises `ConfigError` for what no other program can read, and `NotAvailableError` for statistics.
    """
    need_model(model.estimator if isinstance(model, Model) else model)
    if isinstance(model, Model):
        declared = model.definition.schema_
        schema: Schema | None = model.definition.build_schema()
        estimator, target, scale = model.estimator, declared.target.column, declared.target.scale or 1.0
        classes: list[Any] | None = declared.target.classes
    else:
        estimator, target, scale, schema = model, None, 1.0, model.encoder
        classes = list(model.classes or (False, True)) if isinstance(model, Classifier) else None
    if classes is not None and not all(isinstance(label, str | bool | int) for label in classes):
        raise ConfigError("export: expected classes that are texts, whole numbers or truth values")
    weights, intercepts = estimator.linear()
    assert estimator.prediction is not None
    labels = [None] if len(weights) == 1 else classes
    assert labels is not None
    inputs, columns = _of_names(estimator.feature_names) if schema is None else _of_schema(schema)
    _check_names({str(given["column"]) for given in inputs}, target, [f"{SHARE}{label}" for label in classes or ()])
    return {
        "format": FORMAT,
        "version": VERSION,
        "statement": model.statement(),
        "target": target,
        "classes": classes,
        "probabilities": classes is not None and bool(getattr(estimator, "probabilistic", False)),
        "link": estimator.link,
        "cut": None if (cut := estimator.cut) is None else list(cut),
        "scale": scale,
        "inputs": inputs,
        "columns": columns,
        "ranges": estimator.prediction.ranges(),
        "outputs": [
            {"label": label, "intercept": float(intercept), "weights": row.tolist()}
            for label, intercept, row in zip(labels, intercepts, weights, strict=True)
        ],
        "moderation": estimator.moderation(),
    }


def refusals(definition: Definition) -> list[str]:
    """Say which languages a model of this definition cannot be exported to, and why, one sentence for each reason."""
    target = definition.schema_.target
    labels = None if target.classes is None else [*target.classes]
    try:
        inputs, columns = _of_schema(definition.build_schema())
        _check_names({str(g["column"]) for g in inputs}, target.column, [f"{SHARE}{c}" for c in labels or ()])
    except ConfigError as error:
        return [f"no model of this job can be exported: {str(error).removeprefix('export: ')}"]
    output = {"label": None, "intercept": 0.0, "weights": [0.0] * len(columns)}
    document: dict[str, object] = {"statement": "", "target": target.column, "classes": labels and labels[:2]}
    document |= {"link": "identity", "cut": None, "scale": 1.0, "moderation": None, "outputs": [output]}
    document |= {"inputs": inputs, "columns": columns, "ranges": None, "probabilities": False}
    reasons: dict[str, list[str]] = {}
    for language, export in exports().items():
        with suppress(ModuleNotFoundError):  # what the columns are is looked at first
            try:
                export.write(document, "records")
            except ConfigError as error:
                reasons.setdefault(str(error).removeprefix("export: "), []).append(language)
    return [f"no export to {' and '.join(languages)}: {reason}" for reason, languages in reasons.items()]


def _check_names(columns: Set[str], target: str | None, shares: Sequence[str]) -> None:
    """Raise `ConfigError` for names of `columns`, the `target` or `shares` that are none, or one, in some format."""
    if len(set(shares)) < len(shares):
        raise ConfigError("export: two classes have the same text, which are one class in other programs")
    if target in columns:
        raise ConfigError(f"export: {target!r} is a feature and the target, which are one in other programs")
    taken = {name.casefold() for name in (PREDICTION, "probabilities", *shares)}  # SQL compares names without case
    for column in (*sorted(columns), *([] if target is None else [target])):
        if not column.strip():
            raise ConfigError("export: a column has an empty name, which other programs do not read: rename it")
        if column.casefold() in taken or column.startswith(PREFIX):
            raise ConfigError(
                f"export: {column!r} is the name of something else that the export adds: name the column otherwise"
            )


def _of_names(names: tuple[object, ...]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Features without a schema: numbers as they come, and 0 for a missing one."""
    inputs = [{"name": str(n), "column": n, "type": "number", "missing": 0.0, "blanks": []} for n in names]
    kinds: dict[str, object] = {"kind": "as it is", "constants": [], "ends": None}
    return inputs, [{"name": str(n), "input": k} | kinds for k, n in enumerate(names)]


def _of_schema(schema: "Schema") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    inputs, columns = [], []
    for k, (name, declared) in enumerate(schema.declarations.items()):
        inputs.append({"name": name, "column": declared.column, **_input(declared), "blanks": sorted(schema.blanks)})
        columns += [_column(piece, k) for piece in declared.pieces]
    products = schema.pieces[len(columns) :]
    found = [{"name": p.name, "kind": "product", "columns": [int(at) for at in p.at]} for p in products]
    return inputs, [*columns, *found]


def _input(declared: Declaration) -> dict[str, object]:
    """What the values of a feature may be."""
    form = None if declared.format is None else _format(declared.name, declared.format)
    codes = dict(declared.codes)
    missing, other = None if declared.fill is None else codes.get(declared.fill), codes.get(OTHER)
    if declared.part is not None:
        names = NAMES.get(declared.part, ())
        named = {str(i): codes[n] for i, n in enumerate(names, 1) if n in codes} if codes else None
        filled = missing if codes else declared.fill and float(declared.fill)
        date = {"type": "date", "format": form, "part": declared.part, "codes": named}
        return date | {"missing": filled, "other": other}
    if declared.is_number:
        kind = {"type": "number"} if declared.decimal is None else {"type": "decimal", "places": declared.decimal}
        return kind | {"missing": None if declared.fill is None else float(declared.fill)}
    if declared.hashed:
        return {"type": "hash", "buckets": declared.hashed}
    known = {text: code for text, code in codes.items() if text not in (MISSING, OTHER)}
    return {"type": "category", "codes": known, "missing": missing, "other": other}


def _format(name: str, written: str) -> str:
    """A format of dates in the codes of `exported.CODES`. Raises `ConfigError` for other codes."""
    if written in EPOCHS or written == "%s":
        return "seconds" if written == "%s" else written
    form = re.sub("%[-_0]?([.#:]*[0-9]?.)", lambda code: _SAME.get(code[1], f"%{code[1]}"), written).replace(
        ".%f", "%.f"
    )
    if unread := {code for code in re.findall("%([.#:]*[0-9]?.?)", form) if code not in exported.CODES}:
        need = "leave out the format, for ISO 8601" if "+" in unread else "use a column with year, month and day"
        codes = ", ".join(f"%{code}" for code in sorted(unread))
        raise ConfigError(f"export: {name!r} has {codes} in its format of dates, which no export reads; {need}")
    return form


def _column(piece: Piece, k: int) -> dict[str, object]:
    constants = [None if c == math.inf else c for c in piece.at]
    curved = [piece.origin - piece.unit, piece.origin + piece.unit] if piece.kind in CURVES else None
    ends = list(piece.at) if piece.kind == "linear" else curved
    return {"name": piece.name, "input": k, "kind": piece.kind, "constants": constants, "ends": ends}


def _json(document: Document, table: str) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _python(document: Document, table: str) -> str:
    head, _, rest = Path(exported.__file__).read_text(encoding="utf-8").partition("MODEL: dict[str, Any] = {}")
    return f"{head}MODEL: dict[str, Any] = {document!r}{rest}"


def _of_values(write: Writer) -> Writer:
    """A writer for a language that compares the numbers of a column as numbers, and not as texts."""

    def checked(document: Document, table: str) -> Written:
        for given in document["inputs"]:
            if given["type"] in ("number", "decimal") and any(map(_is_number, given["blanks"])):
                text = "a missing value that is written as a number"
                raise ConfigError(f"export: {given['name']!r} may have {text}, which json and python alone read")
        return write(document, table)

    return checked


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


EXPORTS = {
    "json": Export(_json),
    "python": Export(_python),
    "sql": Export(_of_values(sql)),
    "onnx": Export(_of_values(onnx_text), "onnx"),
    "mlflow": Export(mlflow_files),
}
"""The languages of this package. Another one adds its own by its entry points of `streamdp.exports`."""


@cache
def exports() -> dict[str, Export]:
    """All languages by name."""
    return EXPORTS | {found.name: found.load() for found in entry_points(group="streamdp.exports")}


def written(document: Document, language: str, table: str) -> Written:
    """Return a `document` in a `language`: a file, or the files of a folder by their paths; `table` is SQL's.

    Raises `ConfigError` for an unknown language, for what it cannot say, and if its extra is not installed.
    """
    if (export := exports().get(language)) is None:
        raise ConfigError(f"--to: expected one of {', '.join(exports())}{suggestion(language, exports())}")
    if not export.installed:
        raise ConfigError(needs(language, str(export.needs)))
    return export.write(document, table)
