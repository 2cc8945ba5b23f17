"""YAML 1.2 scalars for PyYAML, and the line of each setting.

PyYAML reads YAML 1.1: `no` is false, `010` is eight, `1:30` is ninety and `1e-6` is text. A schema may declare the
country NO as a category. Therefore plain scalars follow the core schema of YAML 1.2 (section 10.3.2), except that
infinities, NaN and digits after a leading zero are text. A key that is given twice is an error. ruamel.yaml, which
reads YAML 1.2, makes the number 501 of the category 00501, 1000 of 1_000, and a date of 2020-01-01.
"""

import re
from collections.abc import Hashable, Sequence
from typing import Any

import yaml

from streamdp.errors import ConfigError

_HINTS = {
    "'\\t'": "indent by blanks",
    "<block end>": "begin all keys of a mapping in the same column",
    "mapping values": "indent it as the lines beside it, or put quotes around text with a colon",
}
"""What to do about what PyYAML says."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, object] = {}  # noqa: RUF012 - PyYAML's class-level registry, refilled below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="expected text as a key", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _load(text: str, name: str) -> tuple[yaml.Node | None, Any]:
    """The root node and its value; the node is None for an empty text. Raises `ConfigError` that begins with `name`."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            return root, None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = error.problem or "not YAML"
        hint = next((f": {what}" for said, what in _HINTS.items() if said in problem), "")
        raise ConfigError(f"{name}{place}: {problem}{hint}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # Python refuses integers of thousands of digits
        raise ConfigError(f"{name}: not YAML text") from None


def read_value(text: str, name: str) -> object:
    """Read one value from YAML `text`, or raise `ConfigError`; `name` begins error messages."""
    hint = "put quotes around special characters"
    try:
        root, value = _load(text, name)
    except ConfigError as error:
        raise ConfigError(f"{error}; {hint}") from None
    if root is None:
        raise ConfigError(f"{name}: expected a value; {hint}")
    return value


class YamlText:
    """A YAML text whose root is a mapping: `data` is its value, `line` locates its settings.

    Raises `ConfigError` with `name`, line and column if the text is not such a document.
    """

    def __init__(self, text: str, name: str) -> None:
        self._root, self.data = _load(text, name)
        if not isinstance(self.data, dict):
            raise ConfigError(f"{name}: expected a job, a mapping of settings; `streamdp init DATA` writes one")

    def line(self, place: Sequence[str | int]) -> int:
        """Locate a setting by its `place`, the path of keys and list indices.

        Returns the line, from 1. If the setting is missing, it is the line of the innermost setting around it.
        """
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
