"""The places of a job that a draft leaves empty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamdp.config.problems import WrongSettingsError
from streamdp.config.yaml12 import YamlText

_FIXES = {
    "feature": "write the bounds [low, high] of a number, or a list of categories, or delete the line",
    "schema.target.column": "write the name of the column to predict",
    "schema.target.bounds": "write the public bounds [low, high]",
    "schema.target.classes": "write the labels, at least two",
    "model.trust": "write nobody, process, window or shuffler",
}
"""What to write for settings that a draft leaves empty, and that a job needs."""
_ONE_OF = ("bounds", "categories", "classes")
"""Of these settings of a column one is enough."""


def check_filled(document: YamlText, path: str) -> None:
    """Raise `WrongSettingsError` if places of the job at `path` are to be filled in."""
    out, found = [], dict(_settings(document.data))
    for place in [place for place, value in found.items() if value is None]:
        *around, last = place
        if last in _ONE_OF and any(found.get((*around, other)) is not None for other in _ONE_OF):
            continue
        match place:
            case ("schema", "features", _) | ("schema", "features", _, "bounds" | "categories"):
                setting = "feature"
            case _:
                setting = ".".join(place)
        if (fix := _FIXES.get(setting)) is not None:
            out.append(f"{path}, line {document.line(place)}: {'.'.join(place)} is empty: {fix}")
    if out:
        raise WrongSettingsError(out)


def _settings(value: Mapping[object, object], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """The settings of nested mappings by their keys."""
    for key, inner in value.items():
        here = (*place, str(key))
        yield from _settings(inner, here) if isinstance(inner, dict) else [(here, inner)]
