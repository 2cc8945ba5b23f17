"""How a notebook shows a model: its weights, its guarantee, and how many records it has learned."""

from __future__ import annotations

from html import escape
from typing import Any


def page(model: Any) -> str:
    """Return a fragment of HTML. It holds only what `weights`, `guarantee` and `n_seen` give.

    `model`: the estimator.
    """
    rows = []
    for name, value in model.weights.items():
        inner = value.items() if isinstance(value, dict) else [(name, value)]
        prefix = f"{name}: " if isinstance(value, dict) else ""
        rows += [f"<tr><td>{escape(prefix + str(key))}</td><td>{weight:+.4g}</td></tr>" for key, weight in inner]
    head = f"<b>{escape(type(model).__name__)}</b>: {model.n_seen:,} records learned, {escape(str(model.guarantee))}"
    table = f"<table><tr><th>weight of</th><th>value</th></tr>{''.join(rows)}</table>" if rows else "no weights yet"
    return (
        f"<div>{head}{table}<details><summary>statement</summary><pre>{escape(model.statement())}</pre></details></div>"
    )
