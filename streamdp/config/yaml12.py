"""YAML that says what it looks like, and remembers its lines.

PyYAML reads YAML 1.1, where `no` is false, `010` is eight, `1:30` is ninety and `1e-6` is text. A schema declares
categories such as the country NO, so plain scalars are read by the core schema of YAML 1.2 here (section 10.3.2), but
for infinities, NaN and digits after a leading zero, which stay text. A key given twice is an error instead of a silent
choice.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import yaml

from streamdp.errors import ConfigError


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's class-level registry, refilled below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


class Document:
    """A parsed YAML text whose root is a mapping: `.data`, and the line of any place in it.

    Raises `ConfigError` with `name`, line and column where the text is not such a document.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        loader = _Loader(text)
        try:
            self._root = loader.get_single_node()
            self.data: Any = None if self._root is None else loader.construct_document(self._root)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
            raise ConfigError(f"{name}{place}: {error.problem or 'not YAML'}") from None
        except yaml.YAMLError:
            raise ConfigError(f"{name}: not YAML text") from None
        finally:
            loader.dispose()
        if not isinstance(self.data, dict):
            raise ConfigError(f"{name}: expected a mapping of settings")

    def line(self, place: Sequence[str | int]) -> int:
        """The line (from 1) of the setting at `place`, or of the closest one around it that is there."""
        node = self._root
        line = 1
        for step in place:
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == step), None)
                if found is None:
                    break
                key, node = found
                line = key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
            else:
                break
        return line
