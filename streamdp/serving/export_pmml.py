"""An exported model as a `RegressionModel` of PMML 4.4.

Each raw column is a field: a double, or a string. The encoded columns are derived fields, and a value that is missing
or does not fit makes them missing, and so the prediction. Minima, maxima and products of PMML leave missing values
out, and categorical predictors count them as 0, so none of these is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from copy import deepcopy
from typing import Any
from xml.etree import ElementTree as ET

from streamdp.errors import ConfigError
from streamdp.serving.added import PREDICTION, PREFIX, SHARE


def pmml(document: Mapping[str, Any], table: str) -> str:
    """Return the XML of a `document`; a `table` means nothing to it.

    Raises `ConfigError` for dates and hashed texts, which PMML cannot read, and for characters that XML has not.
    """
    classes, target = document["classes"], document["target"] or f"{PREFIX}target"
    root = ET.Element("PMML", version="4.4", xmlns="http://www.dmg.org/PMML-4_4")
    header = ET.SubElement(root, "Header")
    ET.SubElement(header, "Application", name="streamdp")
    ET.SubElement(header, "Annotation").text = document["statement"]
    fields = _fields(document["inputs"])
    dictionary = ET.SubElement(root, "DataDictionary", numberOfFields=str(len(fields) + 1))
    for name, given in fields.items():
        text = given["type"] == "category"
        field = ET.SubElement(dictionary, "DataField", _type(name, "string" if text else "double"))
        for blank in dict.fromkeys(["", *given["blanks"]]) if text else ():
            ET.SubElement(field, "Value", value=blank, property="missing")
    field = ET.SubElement(dictionary, "DataField", _type(target, "double" if classes is None else "string"))
    for label in classes or ():
        ET.SubElement(field, "Value", value=str(label))
    derived = ET.SubElement(root, "TransformationDictionary")
    for k, given in enumerate(document["inputs"]):
        _derive(derived, f"v{k}", _value(given))
    for j, column in enumerate(document["columns"]):
        _derive(derived, f"c{j}", _column(column))
    _model(root, document, target, list(fields), derived)
    ET.indent(root)
    written = ET.tostring(root, encoding="unicode")
    try:
        if "\r" in written:  # XML reads it as a new line
            raise ET.ParseError
        ET.fromstring(written)
    except ET.ParseError:
        raise ConfigError("export: a name, a category or a class has a character that XML cannot have") from None
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{written}\n'


def _fields(inputs: list[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The raw columns, which features may share if they read them alike."""
    found: dict[str, Mapping[str, Any]] = {}
    for given in inputs:
        if given["type"] not in ("number", "category"):
            raise ConfigError(
                f"export: {given['name']!r} is a date or a hashed text, which PMML cannot read; use python"
            )
        if found.setdefault(str(given["column"]), given)["type"] != given["type"]:
            raise ConfigError(f"export: {given['column']!r} is a number and a text, which is no field of PMML")
    return found


def _model(root: ET.Element, document: Mapping[str, Any], target: str, fields: list[str], derived: ET.Element) -> None:
    classes, outputs = document["classes"], document["outputs"]
    if classes is None:
        how = {"functionName": "regression", "normalizationMethod": "exp" if document["link"] == "log" else "none"}
    else:
        how = {"functionName": "classification", "normalizationMethod": "softmax" if len(outputs) > 1 else "logit"}
    model = ET.SubElement(root, "RegressionModel", how)
    mining = ET.SubElement(model, "MiningSchema")
    for name in fields:
        ET.SubElement(mining, "MiningField", name=name, invalidValueTreatment="asMissing")
    ET.SubElement(mining, "MiningField", name=target, usageType="target")
    shown = ET.SubElement(model, "Output")
    predicted = _type(PREDICTION, "string" if classes else "double") | {"feature": "predictedValue"}
    ET.SubElement(shown, "OutputField", predicted)
    for label in map(str, classes if document["probabilities"] else ()):
        share = _type(f"{SHARE}{label}", "double") | {"feature": "probability", "value": label}
        ET.SubElement(shown, "OutputField", share)
    if classes is None:
        targets = ET.SubElement(model, "Targets")
        ends = [math.exp(end) if document["link"] else float(end) for end in document["cut"] or ()]
        cut = dict(zip(("min", "max"), map(repr, ends), strict=False))
        ET.SubElement(targets, "Target", cut, field=target, rescaleFactor=repr(float(document["scale"])))
    if classes is not None and len(outputs) == 1:  # the predictor is that of the second class
        _table(model, outputs[0], classes[1], _moderated(document, derived))
        ET.SubElement(model, "RegressionTable", targetCategory=str(classes[0]), intercept="0.0")
        return
    for output in outputs:
        _table(model, output, output["label"])


def _table(model: ET.Element, output: Mapping[str, Any], label: Any, moderated: str | None = None) -> None:
    """A linear predictor, or only the derived field that is `moderated`."""
    category = {} if label is None else {"targetCategory": str(label)}
    intercept = 0.0 if moderated else output["intercept"]
    table = ET.SubElement(model, "RegressionTable", category | {"intercept": repr(float(intercept))})
    terms = {moderated: 1.0} if moderated else {f"{PREFIX}c{j}": w for j, w in enumerate(output["weights"])}
    for name, weight in terms.items():
        ET.SubElement(table, "NumericPredictor", name=name, coefficient=repr(float(weight)))


def _moderated(document: Mapping[str, Any], derived: ET.Element) -> str | None:
    """The derived field of the predictor of two classes, divided for the noise in it; None if it is not."""
    noise = document["moderation"]
    if noise is None:
        return None
    output = document["outputs"][0]
    scores, squares = [_constant(output["intercept"])], [_constant(noise["constant"])]
    for j, weight in enumerate(output["weights"]):
        column = _field(f"{PREFIX}c{j}")
        scores.append(_apply("*", weight, column))
        squares.append(_apply("pow", _apply("/", _apply("-", column, noise["centres"][j]), noise["scales"][j]), 2.0))
    spread = _apply("+", _apply("*", _apply("sum", *squares), math.pi / 8 * noise["variance"]), 1.0)
    there = [_apply("isNotMissing", _field(f"{PREFIX}v{k}")) for k in range(len(document["inputs"]))]
    fits = _apply("and", *there) if len(there) > 1 else there[0]  # `sum` leaves missing values out
    return _derive(
        derived, "moderated", _apply("if", fits, _apply("/", _apply("sum", *scores), _apply("sqrt", spread)))
    )


def _value(given: Mapping[str, Any]) -> ET.Element:
    """The value of an input; missing if it does not fit."""
    name, missing = str(given["column"]), given.get("missing")
    x = _field(name)
    if given["type"] == "number":
        finite = _apply("if", _apply("lessOrEqual", _apply("abs", x), sys.float_info.max), x)
        return finite if missing is None else _apply("if", _apply("isMissing", x), missing, finite)
    found = ET.Element("MapValues", outputColumn="code", dataType="double")
    for key, code in (("defaultValue", given["other"]), ("mapMissingTo", missing)):
        if code is not None:
            found.set(key, repr(float(code)))
    ET.SubElement(found, "FieldColumnPair", field=name, column="text")
    table = ET.SubElement(found, "InlineTable")
    for text, code in given["codes"].items():
        row = ET.SubElement(table, "row")
        ET.SubElement(row, "text").text = text
        ET.SubElement(row, "code").text = repr(float(code))
    return found


def _column(column: Mapping[str, Any]) -> ET.Element:
    kind = column["kind"]
    if kind == "product":
        first, *others = (_field(f"{PREFIX}c{k}") for k in column["columns"])
        for other in others:
            first = _apply("*", first, other)
        return first
    constants, value = column["constants"], _field(f"{PREFIX}v{column['input']}")
    if kind == "as it is":
        return value
    if kind == "level":
        return _apply("if", _apply("equal", value, constants[0]), 1.0, 0.0)
    if kind == "bin":
        below = 1.0 if constants[1] is None else _apply("if", _apply("lessThan", value, constants[1]), 1.0, 0.0)
        return _apply("if", _apply("greaterOrEqual", value, constants[0]), below, 0.0)
    if kind in ("sin", "cos"):
        turns = _apply("floor", _apply("/", value, constants[0]))
        rest = _apply("-", value, _apply("*", turns, constants[0]))
        return _apply(kind, _apply("*", rest, 2 * math.pi / constants[0]))
    low, high = constants[:2]
    above = _apply("if", _apply("greaterThan", value, high), high, value)
    x = _apply("if", _apply("lessThan", value, low), low, above)
    if kind == "log":
        x = _apply("ln", x)
    elif kind == "asinh":
        x = _asinh(_apply("/", x, constants[2]))
    elif kind == "power":
        x = _apply("pow", x, constants[2])
    low, high = column["ends"]
    return _apply("-", _apply("*", _apply("/", _apply("-", x, low), high - low), 2.0), 1.0)


def _asinh(x: ET.Element) -> ET.Element:
    """sign(x) ln(|x| + sqrt(x^2 + 1)): PMML has no asinh."""
    root = _apply("sqrt", _apply("+", _apply("*", x, x), 1.0))
    size = _apply("ln", _apply("+", _apply("abs", x), root))
    return _apply("if", _apply("lessThan", x, 0.0), _apply("-", 0.0, size), size)


def _derive(derived: ET.Element, name: str, expression: ET.Element) -> str:
    name = PREFIX + name
    ET.SubElement(derived, "DerivedField", _type(name, "double")).append(expression)
    return name


def _apply(function: str, *arguments: ET.Element | float) -> ET.Element:
    found = ET.Element("Apply", function=function)
    found.extend(deepcopy(one) if isinstance(one, ET.Element) else _constant(one) for one in arguments)
    return found


def _constant(value: float) -> ET.Element:
    found = ET.Element("Constant", dataType="double")
    found.text = repr(float(value))
    return found


def _field(name: str) -> ET.Element:
    return ET.Element("FieldRef", field=name)


def _type(name: str, kind: str) -> dict[str, str]:
    return {"name": name, "optype": "categorical" if kind == "string" else "continuous", "dataType": kind}
