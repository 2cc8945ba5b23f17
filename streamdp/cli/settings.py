"""A job configuration from the arguments of `streamdp run`."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamdp.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from streamdp.config.file import FileSourceConfig, FileType
    from streamdp.config.job import JobConfig


def job_config(what: str, settings: dict[str, Any], assignments: Sequence[str]) -> "JobConfig":
    """Make a job configuration from a YAML file and `--set`, or from options and `--set`.

    `what` is the argument of the command: a YAML file, a data file, or `-` for standard input. `settings` are nested,
    from options, with the keys of a `job.yaml`; None and empty mappings mean not given. Each of `assignments` is a
    dotted key of a `job.yaml`, `=`, and a YAML value; beside a YAML file it replaces its setting. The other options do
    not change a file: they have no key that the message of an error could name. A store keeps the settings with which
    it began, whether they came from the file or from `--set`, and refuses others. Raises `ConfigError`; the message
    names the option or the key.
    """
    from streamdp.config.file import file_type, stem
    from streamdp.config.job import check_no_store, load_config, make_config

    settings = _given(settings)
    if what.endswith((".yaml", ".yml")):
        if settings:
            raise ConfigError(
                f"{what} holds the whole job: with it, only --set KEY=VALUE and options that say how to run it can be"
                " given"
            )
        return load_config(what, assigned(assignments))
    if not what:
        raise ConfigError(f"{what!r}: expected a .yaml job, a data file or folder, or - for standard input")
    check_no_store(what)
    settings.setdefault("source", {})["path"] = what
    for assignment in assignments:
        _assign(settings, assignment)
    schema = settings.get("schema", {})
    if isinstance(schema, dict) and not {"target", "features"} <= schema.keys():
        check_there(what)
        raise ConfigError(
            f"{what} is data and no job: `streamdp init {what}` writes a job.yaml for it, with places to fill in; or"
            " give --target and --feature here"
        )
    settings["source"].setdefault("type", file_type(what))
    settings.setdefault("job", "stdin" if what == "-" else stem(what))
    return make_config(settings)


def check_there(path: str) -> None:
    """Raise `SourceError` if there is no file or folder of data at `path`."""
    if path != "-" and "://" not in path and not os.path.exists(path):
        raise SourceError(f"cannot open {path}: no such file or directory")


_PIPED: "dict[str, FileType]" = {"jsonl": "jsonl"}
"""The format on standard input, by that of a job's files; CSV in place of the others."""


def file_like(
    path: str, usual: Mapping[str, Any] | None, assignments: Sequence[str], *, kind: "FileType | None" = None
) -> "FileSourceConfig":
    """The form of the file at `path`: as `usual`, which are settings of `FileSourceConfig`, if it is of that type.

    `--set source.KEY=VALUE` in `assignments` replace them. `kind` is the type of the file; None: that
    of its ending. Raises `ConfigError`; the message names the key.
    """
    from pydantic import ValidationError

    from streamdp.config.file import WRITTEN, FileSourceConfig, file_type
    from streamdp.config.job import check_no_store
    from streamdp.config.problems import problems

    chosen: dict[str, Any] = {}
    for assignment in assignments:
        _assign(chosen, assignment)
    if path.endswith((".yaml", ".yml")):
        raise ConfigError(f"{path} is a job, expected data")
    check_no_store(path, "give a file of data")
    given = chosen.pop("source", {})
    if chosen or not given.keys() <= WRITTEN:
        raise ConfigError(
            f"--set: expected one of source.{', source.'.join(sorted(WRITTEN))}: only the text's form is set"
        )
    before = {"type": "csv"} | dict(usual or {})
    kind = kind or (_PIPED.get(before["type"], "csv") if path == "-" else file_type(path))
    if kind != before["type"]:
        before = {}
    try:
        return FileSourceConfig(**before | given | {"path": path, "type": kind})
    except ValidationError as error:
        raise ConfigError(f"--set source.{problems(error)[0][1]}") from None


def assigned(assignments: Sequence[str]) -> list[tuple[list[str], object]]:
    """The keys and the value of each `--set`. Raises `ConfigError` for one that is none, or is given twice."""
    chosen: dict[str, object] = {}
    return [_assign(chosen, assignment) for assignment in assignments]


def _given(settings: dict[str, object]) -> dict[str, Any]:
    nested = {key: _given(value) if isinstance(value, dict) else value for key, value in settings.items()}
    return {key: value for key, value in nested.items() if value not in (None, {})}


def _assign(settings: dict[str, object], assignment: str) -> tuple[list[str], object]:
    """Add the setting of one `--set`, and return its keys and its value. A setting cannot be given twice."""
    from streamdp.config.file import WRITTEN
    from streamdp.config.job import assign
    from streamdp.config.yaml12 import read_value

    key, equals, text = assignment.partition("=")
    keys = key.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {key!r}: expected KEY=VALUE, such as model.eta=0.1")
    # a mark alone, such as a comma, is no YAML, and a shell takes its quotes away
    mark = len(text) == 1 and keys[-1] in WRITTEN and not (text.isalnum() or text.isspace() or text == '"')
    value = text if mark else read_value(text, f"--set {key}")
    if assign(settings, keys, value):
        raise ConfigError(f"--set {key}: the setting is given twice")
    return keys, value


def parse_features(texts: Sequence[str]) -> dict[str, object]:
    """Parse `texts` of `--feature`, like `COLUMN=LOW:HIGH` or `COLUMN=A|B|C`. Returns the setting `schema.features`."""
    features: dict[str, object] = {}
    for text in texts:
        column, equals, declared = text.partition("=")
        if not (column and equals and declared):
            raise ConfigError(f"--feature {text!r}: expected COLUMN=LOW:HIGH or COLUMN=A|B|C")
        if column in features:
            raise ConfigError("--feature: a column is given twice")
        levels = [level.strip() for level in declared.split("|")]
        features[column] = levels if len(levels) > 1 else parse_bounds(f"--feature {column}", declared)
    return features


def parse_classes(text: str) -> list[str]:
    """Parse the `text` `A,B,C` of `--classes`."""
    classes = [label.strip() for label in text.split(",")]
    if len(classes) < 2:
        raise ConfigError(f"--classes: expected two or more classes as A,B, got {text!r}")
    return classes


def parse_bounds(option: str, text: str) -> list[float]:
    """Parse a pair of bounds from a `text` `LOW:HIGH`; error messages name the `option`."""
    try:
        low, high = map(float, text.replace("_", "?").split(":"))  # Python reads 0_5 as 5
    except ValueError:
        raise ConfigError(f"{option}: expected two numbers as LOW:HIGH, got {text!r}") from None
    return [low, high]
