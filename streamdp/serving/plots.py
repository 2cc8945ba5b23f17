"""A picture of a committed model: its weights with intervals, what was learned, and measured errors if they are known.

Everything in it comes from committed snapshots, or from the measures on a public holdout that a run printed.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.records import Shard
from streamdp.errors import ConfigError, StoreError
from streamdp.serving.publish import Weight, unsettled, weights
from streamdp.serving.snapshots import Model
from streamdp.store.snapshot import Commit, Counts, counts_sum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "html")
_MOST = 40
"""The largest number of weights that can be read in one picture; the largest ones are shown."""
_BLUE, _ORANGE, _GREY, _GREEN = "#0072b2", "#d55e00", "#777777", "#009e73"


def measured(lines: Iterable[str]) -> dict[str, list[tuple[int, float]]]:
    """For each measure in JSON lines of a run: the numbers of learned records and the values.

    Other lines are ignored.
    """
    out: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        try:
            event = json.loads(line)
            learned, found = int(event["learned"]), event["holdout"].items()
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        for name, value in found:
            if isinstance(value, float):
                out.setdefault(name, []).append((learned, value))
    return out


def draw(model: Model, history: Sequence[Commit], errors: dict[str, list[tuple[int, float]]], level: float) -> Figure:
    """Draw a model, its last commits, oldest first, the `errors` of `measured` and the intervals of this `level`.

    Raises `ConfigError` without the extra `plots`.
    """
    try:
        with _plain_text():
            return _picture(model, history, errors, level) if model.definition.has_model else _series(model, level)
    except ImportError:
        raise ConfigError("pictures need the extra plots: pip install 'streamdp[plots]'") from None


def _plain_text() -> AbstractContextManager[Any]:
    """A name is no formula, even with two signs of dollars. Some texts of a figure are made when it is written."""
    import matplotlib as mpl

    return mpl.rc_context({"text.parse_math": False})


def _picture(
    model: Model, history: Sequence[Commit], errors: dict[str, list[tuple[int, float]]], level: float
) -> Figure:
    from matplotlib.figure import Figure

    found = weights(model.estimator, level)
    shown = [w for w in found if not w.name.startswith("(")] or found
    shown = sorted(sorted(shown, key=lambda w: -abs(w.value))[:_MOST], key=shown.index)
    height = max(3.0, 0.3 * len(shown) + 1.2)
    small = 3.0 if errors else 0.0
    figure = Figure(figsize=(9, height + 3.2 + small), layout="constrained")
    figure.suptitle(
        f"{model.snapshot.job}: {model.snapshot.counts.learned:,} records, {model.estimator.guarantee}", wrap=True
    )
    axes = figure.subplots(3 if errors else 2, 1, height_ratios=[height, *([small] if errors else []), 2.6])
    baselines = model.definition.schema_.baselines()
    _weights(axes[0], shown, baselines, level, len(found))
    if errors:
        _errors(axes[1], errors)
        if model.estimator.last_change is not None:
            axes[1].axvline(model.estimator.last_change, color=_GREY, linestyle="--", label="change noticed")
            axes[1].legend(fontsize=8)
    _records(axes[-1], history, model)
    return figure


def _series(model: Model, level: float) -> Figure:
    """A picture for each statistic: by window of time a line for each group and item, else a point."""
    from matplotlib.figure import Figure

    estimator: Any = model.estimator
    rows = estimator.rows(level)
    series = any("window" in row for row in rows)
    lines: dict[str, dict[str, list[tuple[str, list[float]]]]] = {}
    for row in rows:
        numbers = [math.nan if row[key] is None else row[key] for key in ("value", "low", "high")]
        label = " ".join(str(row[key]) for key in ("group", "item") if row[key] is not None)
        label = f" {label}" if label[:1] == "_" else label  # which a legend leaves out
        at, line = (row["window"], label) if series else (label, "")
        lines.setdefault(row["statistic"], {}).setdefault(line, []).append((at, numbers))
    figure = Figure(figsize=(9, 1 + 3 * max(1, len(lines))), layout="constrained")
    counts = model.snapshot.counts
    figure.suptitle(f"{model.snapshot.job}: {counts.learned:,} records, {estimator.guarantee}", wrap=True)
    for axis, (name, found) in zip(
        figure.subplots(max(1, len(lines)), squeeze=False)[:, 0], lines.items(), strict=False
    ):
        for label, points in list(found.items())[:_MOST]:
            value, low, high = np.array([numbers for _, numbers in points]).T
            reach = np.maximum([value - low, high - value], 0.0)
            axis.errorbar(
                [at for at, _ in points], value, reach, marker="o", linestyle="-" if series else "", label=label
            )
        axis.set_title(f"{name} ({100 * level:g} % intervals)", fontsize=9)
        axis.tick_params(axis="x", labelrotation=30, labelsize=7)
        if any(found):
            axis.legend(fontsize=8)
    return figure


def _weights(axis: Axes, shown: Sequence[Weight], baselines: dict[str, str], level: float, total: int) -> None:
    names = [w.name if w.label is None else f"{w.label}: {w.name}" for w in shown]
    for place, w in enumerate(shown):
        if w.low is not None and w.high is not None:
            axis.plot([w.low, w.high], [place, place], color=_BLUE, linewidth=2)
        axis.plot([w.value], [place], "o", color=_GREY if w.settled is False else _BLUE, markersize=5)
    axis.axvline(0, color=_GREY, linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    notes = [f"{100 * level:g} % intervals" if any(w.low is not None for w in shown) else "no intervals"]
    if (needed := unsettled(shown)) is not None:
        notes.append(f"grey: not settled, {needed}")
    if baselines:
        notes.append("baselines: " + ", ".join(dict.fromkeys(baselines.values())))
    if len(shown) < total - 2:
        notes.append(f"the {len(shown)} largest of {total}")
    axis.set_title("Weights in original units (" + "; ".join(notes) + ")", fontsize=9, wrap=True)


def _errors(axis: Axes, errors: dict[str, list[tuple[int, float]]]) -> None:
    learned = {number for points in errors.values() for number, _ in points}
    for name, points in errors.items():
        axis.plot(*zip(*points, strict=True), marker=".", label=name.replace("_", " "))
    axis.set_title("Measured on the public holdout", fontsize=9)
    axis.set_xlabel("records learned")
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    if len(learned) == 1:
        axis.set_xticks([*learned], [f"{number:,}" for number in learned])
    axis.legend(fontsize=8)


def _records(axis: Axes, history: Sequence[Commit], model: Model) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    counts: dict[str, list[int]] = {"learned": [], "refused": [], "dead_letters": [], "left_out": []}
    now: dict[Shard, Counts] = {}
    for commit in history:
        now[commit.shard] = commit.counts
        for name, number in asdict(counts_sum(now.values())).items():
            counts[name].append(number)
    own = "" if model.definition.schema_.budget is None else " or its own budget"
    spent = f"each learned record spent {model.definition.model.budget}{own}"
    for (name, values), colour in zip(counts.items(), (_BLUE, _ORANGE, _GREY, _GREEN), strict=True):
        if name == "learned" or any(values):
            axis.plot(range(1, len(values) + 1), values, marker=".", color=colour, label=name.replace("_", " "))
    change = model.estimator.last_change
    if change is not None and counts["learned"] and counts["learned"][0] < change:
        noticed = next((i for i, number in enumerate(counts["learned"], 1) if number >= change), len(history))
        axis.axvline(noticed, color=_GREY, linestyle="--", label="change noticed")
    charged = model.estimator.cap_history
    bounds = [] if charged.uncapped else charged.bounds()
    cap = f", a person {bounds[0]} at most" if len(bounds) == 1 else ""
    axis.set_title(f"Records and spends: {spent}{cap}", fontsize=9, wrap=True)
    axis.set_xlabel("commits (the last ones)")
    axis.set_xlim(0.5, max(len(history), 1) + 0.5)
    axis.set_ylim(0, 1.1 * max(1, *(number for values in counts.values() for number in values)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.legend(fontsize=8)


def write(figure: Figure, path: str, below: str) -> None:
    """Write a picture to `path`, whose ending is one of `FORMATS`. `below` is the text below it on a page of HTML.

    Raises `ConfigError` for another ending, and `StoreError` if the file cannot be written.
    """
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"{path}: expected a file that ends in .png, .svg or .html")
    buffer = io.BytesIO()
    options: dict[str, Any] = {"dpi": 150} if kind == "png" else {}
    with _plain_text():
        figure.savefig(buffer, format="png" if kind == "png" else "svg", **options)
    data = buffer.getvalue()
    if kind == "html":
        svg = data.decode()
        page = f"<!doctype html><meta charset=utf-8><title>streamdp</title>{svg[svg.index('<svg') :]}"
        data = f"{page}<pre style='white-space: pre-wrap'>{escape(below)}</pre>\n".encode()
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {(error.strerror or type(error).__name__).lower()}") from None
