"""How a notebook shows a model: its weights or statistics, its guarantee, and how many records it has learned."""

from html import escape
from typing import Any

from streamdp.reading.doubts import of_statistics
from streamdp.reading.estimates import name_of

_MOST = 100  # statistics that are shown: the last ones, so of windows of time the latest


def page(model: Any) -> str:
    """Return HTML of a model. It holds only what `weights`, `rows`, `guarantee` and `n_seen` give."""
    found = []
    for name, value in model.weights.items():
        inner = value.items() if isinstance(value, dict) else [(name, value)]
        prefix = f"{name}: " if isinstance(value, dict) else ""
        found += [(f"weight of {prefix}{key}", f"{weight:+.4g}") for key, weight in inner]
    shown = [] if model.estimated is None else model.estimated.rows()[-_MOST:]
    for row in shown:
        value = "not known yet" if row["value"] is None else f"{row['value']:,.6g}"
        found.append((name_of(row), value))
    rows = [f"<tr><td>{escape(name)}</td><td>{value}</td></tr>" for name, value in found]
    learned = f"{model.learner.n_released:,} records learned"
    head = f"<b>{escape(type(model).__name__)}</b>: {learned}, {escape(str(model.guarantee))}"
    doubts = "".join(f"<p>{escape(doubt)}</p>" for doubt in [*of_statistics(shown), *model.doubts])
    table = f"<table><tr><th>name</th><th>value</th></tr>{''.join(rows)}</table>" if rows else ", nothing to show yet"
    short, _, notes = escape(model.statement()).partition("\n\n")
    more = f"<details><summary>all of the statement</summary><pre>{notes}</pre></details>"
    return f"<div>{head}{table}{doubts}<pre>{short}</pre>{more}</div>"
