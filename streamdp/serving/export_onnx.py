"""An exported model as an ONNX graph of doubles.

Each raw column is an input of the shape (n, 1): doubles, NaN for a missing number, or texts, empty for a missing one.
The outputs are `prediction` and, for classes with probabilities, `probabilities` (n, K). For a row that does not fit
the schema they are NaN, and the class is an empty text.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from streamdp.errors import ConfigError
from streamdp.serving.added import Document


def onnx_text(document: Document, table: str) -> bytes:
    """Return the graph of a `document`, as bytes; a `table` means nothing to it.

    Raises `ConfigError` for dates and hashed texts, which ONNX cannot read. Needs the extra `onnx`.
    """
    for given in document["inputs"]:
        if given["type"] == "date":
            raise ConfigError(
                f"export: {given['name']!r} is a date, which ONNX cannot read; use sql, python, mlflow or json"
            )
        if given["type"] == "hash":
            raise ConfigError(f"export: {given['name']!r} is hashed, which ONNX cannot do; use python, mlflow or json")
    import onnx

    graph = _Graph(onnx)
    values = [_value(graph, given) for given in document["inputs"]]
    columns = [_column(graph, values[c["input"]], c) for c in document["columns"] if c["kind"] != "product"]
    for column in document["columns"]:
        if column["kind"] == "product":
            first, *others = (columns[k] for k in column["columns"])
            for other in others:
                first = graph.add("Mul", first, other)
            columns.append(first)
    X = graph.add("Concat", *columns, axis=1)
    if document["ranges"] is not None:
        low, high = np.array(document["ranges"], dtype=float).T  # None becomes NaN
        low, high = np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf)
        X = graph.add("Max", graph.add("Min", X, high), low)
    weights = np.array([output["weights"] for output in document["outputs"]]).T
    intercepts = np.array([output["intercept"] for output in document["outputs"]])
    scores = graph.add("Add", graph.add("MatMul", X, weights), intercepts)
    gaps = graph.add("Sum", *(graph.add("Mul", value, 0.0) for value in values))  # NaN if one is
    shown = _outputs(graph, document, X, graph.add("Add", scores, gaps), gaps)
    return graph.model(document, shown)


class _Graph:
    """Nodes, inputs and constants of a graph, and names for them."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[object] = []
        self.inputs: dict[str, int] = {}
        self._constants: dict[str, object] = {}

    def add(self, kind: str, *inputs: object, domain: str = "", **attributes: object) -> str:
        """Add a node and return the name of its output. Inputs are names, or constants: numbers and arrays."""
        name = f"streamdp:{len(self.nodes)}"
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        self.nodes.append(self.onnx.helper.make_node(kind, names, [name], domain=domain, **attributes))
        return name

    def constant(self, value: object, dtype: type = np.float64) -> str:
        """The name of a constant."""
        array: np.ndarray = np.asarray(value, dtype=dtype)
        name = f"streamdp:constant:{len(self._constants)}"
        self._constants[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def input(self, name: str, kind: int) -> str:
        """The name of an input, which features may share if they read it alike."""
        if self.inputs.setdefault(name, kind) != kind:
            raise ConfigError(f"export: {name!r} is a number and a text, which is no input of ONNX")
        return name

    def model(self, document: Document, outputs: Mapping[str, tuple[str, int, list[object]]]) -> bytes:
        """The bytes of the model with these outputs: name, type and shape."""
        helper = self.onnx.helper
        for name, (found, _, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [found], [name]))
        graph = helper.make_graph(
            self.nodes,
            "streamdp",
            [helper.make_tensor_value_info(name, kind, ["n", 1]) for name, kind in self.inputs.items()],
            [helper.make_tensor_value_info(name, kind, shape) for name, (_, kind, shape) in outputs.items()],
            list(self._constants.values()),
            doc_string=document["statement"],
        )
        opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 3)]
        model = helper.make_model(graph, producer_name="streamdp", opset_imports=opsets, ir_version=9)
        helper.set_model_props(model, {"statement": document["statement"], "classes": json.dumps(document["classes"])})
        self.onnx.checker.check_model(model)
        return model.SerializeToString()


def _value(graph: _Graph, given: Document) -> str:
    """The value of an input as a column of doubles, NaN if it does not fit."""
    types = graph.onnx.TensorProto
    name, missing = str(given["column"]), given.get("missing")
    if given["type"] in ("number", "decimal"):  # a graph of doubles has decimals as numbers, and no base64
        x = graph.input(name, types.DOUBLE)
        x = graph.add("Where", graph.add("IsNaN", x), math.nan if missing is None else missing, x)
        return graph.add("Where", graph.add("IsInf", x), math.nan, x)
    codes = dict(given["codes"]) | dict.fromkeys(["", *given["blanks"]], -1 if missing is None else missing)
    code = graph.add(
        "LabelEncoder",
        graph.input(name, types.STRING),
        domain="ai.onnx.ml",
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=-1 if given["other"] is None else given["other"],
    )
    x = graph.add("Cast", code, to=types.DOUBLE)
    return graph.add("Where", graph.add("Less", x, 0.0), math.nan, x)


def _column(graph: _Graph, value: str, column: Document) -> str:
    kind, constants = column["kind"], column["constants"]
    double = graph.onnx.TensorProto.DOUBLE
    if kind == "as it is":
        return value
    if kind == "level":
        return graph.add("Cast", graph.add("Equal", value, constants[0]), to=double)
    if kind == "bin":
        inside = graph.add("GreaterOrEqual", value, constants[0])
        if constants[1] is not None:
            inside = graph.add("And", inside, graph.add("Less", value, constants[1]))
        return graph.add("Cast", inside, to=double)
    if kind in ("sin", "cos"):
        period = constants[0]
        turns = graph.add("Floor", graph.add("Div", value, period))
        rest = graph.add("Sub", value, graph.add("Mul", turns, period))
        turned = graph.add("Mul", rest, 2 * math.pi / constants[0])
        if kind == "cos":  # onnxruntime has no cosine of doubles
            turned = graph.add("Add", turned, math.pi / 2)
        return graph.add("Sin", turned)
    x = graph.add("Clip", value, *constants[:2])
    if kind == "log":
        x = graph.add("Log", x)
    elif kind == "asinh":
        x = _asinh(graph, graph.add("Div", x, constants[2]))
    elif kind == "power":
        x = graph.add("Pow", x, constants[2])
    low, high = column["ends"]
    share = graph.add("Div", graph.add("Sub", x, low), high - low)
    return graph.add("Clip", graph.add("Sub", graph.add("Mul", share, 2.0), 1.0), -1.0, 1.0)


def _asinh(graph: _Graph, x: str) -> str:
    """sign(x) ln(|x| + sqrt(x^2 + 1)): onnxruntime has no asinh of doubles."""
    size = graph.add("Abs", x)
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", size, size), 1.0))
    return graph.add("Mul", graph.add("Sign", x), graph.add("Log", graph.add("Add", size, root)))


def _outputs(
    graph: _Graph, document: Document, X: str, scores: str, gaps: str
) -> dict[str, tuple[str, int, list[object]]]:
    types, classes = graph.onnx.TensorProto, document["classes"]
    if classes is None:
        if document["cut"] is not None:
            scores = graph.add("Max", graph.add("Min", scores, document["cut"][1]), document["cut"][0])
        if document["link"] == "log":
            scores = graph.add("Exp", scores)
        found = graph.add("Mul", scores, document["scale"])
        return {"prediction": (found, types.DOUBLE, ["n", 1])}
    several = len(document["outputs"]) > 1
    if several:
        best, shares = graph.add("ArgMax", scores, axis=1, keepdims=1), graph.add("Softmax", scores, axis=1)
    else:
        scores = _moderated(graph, document, X, scores)
        best = graph.add("Cast", graph.add("Greater", scores, 0.0), to=types.INT64)
        second = graph.add("Sigmoid", scores)
        shares = graph.add("Concat", graph.add("Sub", 1.0, second), second, axis=1)
    label = graph.add("Gather", graph.constant([str(c) for c in classes], dtype=object), best)
    chosen = graph.add("Where", graph.add("IsNaN", gaps), graph.constant("", dtype=object), label)
    outputs = {"prediction": (chosen, types.STRING, ["n", 1])}
    if document["probabilities"]:
        outputs["probabilities"] = (shares, types.DOUBLE, ["n", len(classes)])
    return outputs


def _moderated(graph: _Graph, document: Document, X: str, scores: str) -> str:
    noise = document["moderation"]
    if noise is None:
        return scores
    off = graph.add("Sub", X, noise["centres"])
    units = graph.add("Div", off, noise["scales"])
    axes = graph.constant([1], dtype=np.int64)
    square = graph.add("ReduceSum", graph.add("Mul", units, units), axes, keepdims=1)
    square = graph.add("Add", square, noise["constant"])
    spread = graph.add("Mul", square, math.pi / 8 * noise["variance"])
    left = graph.add("Div", graph.add("Sub", scores, noise["odds"]), graph.add("Sqrt", graph.add("Add", spread, 1.0)))
    return graph.add("Add", left, noise["odds"])
