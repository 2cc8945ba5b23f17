"""What of PMML 4.4 `streamdp export --to pmml` writes, evaluated by columns in a few lines; NaN is a missing value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import polars as pl

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "pow": np.power,
    "ln": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "abs": np.abs,
    "and": lambda *all_: np.all(np.broadcast_arrays(*all_), axis=0),
    "equal": np.equal,
    "lessThan": np.less,
    "lessOrEqual": np.less_equal,
    "greaterThan": np.greater,
    "greaterOrEqual": np.greater_equal,
}


class Scorer:
    """Predicts with the XML of a model."""

    def __init__(self, xml: str) -> None:
        self._root = ET.fromstring(xml)
        for element in self._root.iter():
            element.tag = element.tag.removeprefix("{http://www.dmg.org/PMML-4_4}")

    @np.errstate(all="ignore")
    def __call__(self, rows: pl.DataFrame) -> tuple[list[Any], dict[str, list[float]]]:
        """Return the predictions for `rows`, None for neither, and the probabilities that the model shows, by class."""
        fields: dict[str, Any] = {}
        for declared in self._root.iterfind("DataDictionary/DataField"):
            name = declared.attrib["name"]
            missing = [one.attrib["value"] for one in declared.iterfind("Value[@property='missing']")]
            if name not in rows.columns:
                continue  # the target
            column = rows[name].to_list()
            text = rows.schema[name] == pl.String
            column = [None if value in missing else value for value in column] if missing else column
            fields[name] = np.array(column, dtype=object if text else float)
        for derived in self._root.iterfind("TransformationDictionary/DerivedField"):
            fields[derived.attrib["name"]] = _value(derived[0], fields)
        model = self._root.find("RegressionModel")
        assert model is not None
        scores = {}
        for table in model.iterfind("RegressionTable"):
            score = np.full(len(rows), float(table.attrib["intercept"]))
            for term in table:
                score = score + fields[term.attrib["name"]] * float(term.attrib["coefficient"])
            scores[table.get("targetCategory")] = score
        known = ~np.isnan(np.sum(list(scores.values()), axis=0))
        method, target = model.attrib["normalizationMethod"], model.find("Targets/Target")
        if target is not None:
            found = np.exp(scores[None]) if method == "exp" else scores[None]
            ends = [float(target.attrib[end]) if end in target.attrib else None for end in ("min", "max")]
            found = found if ends == [None, None] else np.clip(found, *ends)
            values = (found * float(target.attrib["rescaleFactor"])).tolist()
            return [value if one else None for value, one in zip(values, known, strict=True)], {}
        labels, each = list(scores), np.array(list(scores.values()))
        powers = np.exp(each - each.max(axis=0))
        shown = [one.attrib["value"] for one in model.iterfind("Output/OutputField[@feature='probability']")]
        shares = {label: (powers[labels.index(label)] / powers.sum(axis=0)).tolist() for label in shown}
        best = powers.argmax(axis=0)
        return [labels[k] if one else None for k, one in zip(best, known, strict=True)], shares


def _missing(value: Any) -> Any:
    return np.isnan(value) if np.asarray(value).dtype != object else np.equal(value, None).astype(bool)


def _value(expression: ET.Element, fields: Mapping[str, Any]) -> Any:
    kind = expression.tag
    if kind == "FieldRef":
        return fields[expression.attrib["field"]]
    if kind == "Constant":
        return float(expression.text or "")
    if kind == "MapValues":
        pair = expression.find("FieldColumnPair")
        assert pair is not None
        codes = {
            row.findtext(pair.attrib["column"]): row.findtext("code") for row in expression.iterfind("InlineTable/row")
        }
        codes[None] = expression.get("mapMissingTo")
        other = expression.get("defaultValue")
        found = [codes.get(value, other) for value in fields[pair.attrib["field"]]]
        return np.array([None if code is None else float(code) for code in found], dtype=float)
    function, given = expression.attrib["function"], [_value(one, fields) for one in expression]
    gaps = [_missing(value) for value in given]
    if function in ("isMissing", "isNotMissing"):
        return (gaps[0] == (function == "isMissing")).astype(float)
    if function == "if":
        condition, then, *other = given
        return np.where(gaps[0], np.nan, np.where(condition == 1, then, *(other or [np.nan])))
    if function == "sum":
        return np.nansum(np.broadcast_arrays(*given), axis=0)
    return np.where(np.any(np.broadcast_arrays(*gaps), axis=0), np.nan, _FUNCTIONS[function](*given))
