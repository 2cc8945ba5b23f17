"""What of PMML 4.4 `streamdp export --to pmml` writes, evaluated in a few lines; None is a missing value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree as ET

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "pow": math.pow,
    "ln": math.log,
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "floor": math.floor,
    "abs": abs,
    "and": lambda *all_: all(all_),
    "equal": lambda x, y: x == y,
    "lessThan": lambda x, y: x < y,
    "lessOrEqual": lambda x, y: x <= y,
    "greaterThan": lambda x, y: x > y,
    "greaterOrEqual": lambda x, y: x >= y,
}


class Scorer:
    """Predicts with the XML of a model."""

    def __init__(self, xml: str) -> None:
        self._root = ET.fromstring(xml)
        for element in self._root.iter():
            element.tag = element.tag.removeprefix("{http://www.dmg.org/PMML-4_4}")

    def __call__(self, record: Mapping[str, Any]) -> tuple[Any, dict[str, float] | None] | None:
        """Return the prediction for a `record`, and the probabilities that the model shows; None for neither."""
        fields: dict[str, Any] = {}
        for declared in self._root.iterfind("DataDictionary/DataField"):
            value, name = record.get(declared.attrib["name"]), declared.attrib["name"]
            missing = [one.attrib["value"] for one in declared.iterfind("Value[@property='missing']")]
            fields[name] = None if value in missing else value
        for derived in self._root.iterfind("TransformationDictionary/DerivedField"):
            fields[derived.attrib["name"]] = _value(derived[0], fields)
        model = self._root.find("RegressionModel")
        assert model is not None
        scores = {}
        for table in model.iterfind("RegressionTable"):
            terms = [(fields[t.attrib["name"]], float(t.attrib["coefficient"])) for t in table]
            if any(x is None for x, _ in terms):
                return None
            score = float(table.attrib["intercept"]) + sum(x * weight for x, weight in terms)
            scores[table.get("targetCategory")] = score
        method, target = model.attrib["normalizationMethod"], model.find("Targets/Target")
        if target is not None:
            found = math.exp(scores[None]) if method == "exp" else scores[None]
            return found * float(target.attrib["rescaleFactor"]), None
        powers = {label: math.exp(score - max(scores.values())) for label, score in scores.items()}
        shown = [one.attrib["value"] for one in model.iterfind("Output/OutputField[@feature='probability']")]
        shares = {label: powers[label] / sum(powers.values()) for label in shown}
        return max(powers, key=lambda label: powers[label]), shares or None


def _value(expression: ET.Element, fields: Mapping[str, Any]) -> Any:
    kind = expression.tag
    if kind == "FieldRef":
        return fields[expression.attrib["field"]]
    if kind == "Constant":
        return float(expression.text or "")
    if kind == "MapValues":
        pair = expression.find("FieldColumnPair")
        assert pair is not None
        value = fields[pair.attrib["field"]]
        rows = {
            row.findtext(pair.attrib["column"]): row.findtext("code") for row in expression.iterfind("InlineTable/row")
        }
        code = expression.get("mapMissingTo") if value is None else rows.get(value, expression.get("defaultValue"))
        return None if code is None else float(code)
    function, given = expression.attrib["function"], [_value(one, fields) for one in expression[:1]]
    if function in ("isMissing", "isNotMissing"):
        return (given[0] is None) == (function == "isMissing")
    if function == "if":
        if given[0] is None or (not given[0] and len(expression) < 3):
            return None
        return _value(expression[1] if given[0] else expression[2], fields)
    given += [_value(one, fields) for one in expression[1:]]
    if function == "sum":
        return sum(x for x in given if x is not None)
    return None if None in given else _FUNCTIONS[function](*given)
