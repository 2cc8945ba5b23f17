"""The figures of the library's structure, by `make structure`: sizes, depth, private access, names and types."""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cached_property
from pathlib import Path
from types import FunctionType

from tests.support.paths import ROOT

ENDINGS = (".py", ".pyx", ".pxd", ".pyi")
PACKAGES = ("streamdp", "connectors")
ROOMS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
FLOORS = [layer.split(" | ") for layer in ROOMS["contracts"][0]["layers"]][::-1]


def lines(folder: str, endings: tuple[str, ...] = ENDINGS) -> list[tuple[str, int]]:
    """The files below a folder, and how many lines each has."""
    files = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in endings]
    return [(str(path.relative_to(ROOT)), len(path.read_text(encoding="utf-8").splitlines())) for path in files]


def code(file: str) -> int:
    """How many lines of a file are neither blank nor a comment, nor of a text of its own, such as a docstring."""
    text = re.sub(r'^ *"""(.|\n)*?"""', "", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return sum(not line.lstrip().startswith("#") and not line.isspace() and line != "" for line in text.splitlines())


def by_room() -> dict[str, tuple[int, int, int]]:
    """Lines, lines of code and files of each room; modules that are in no room are one."""
    found: dict[str, tuple[int, int, int]] = {}
    for file, size in (one for top in PACKAGES for one in lines(top)):
        top, *inside = Path(file).parts
        room = top if top == "connectors" else inside[0] if len(inside) > 1 else "(names that users import)"
        before = found.get(room, (0, 0, 0))
        found[room] = before[0] + size, before[1] + code(file), before[2] + 1
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def private(*folders: str) -> Counter[str]:
    """How many lines of each file read a private attribute outside its class, as ruff's rule SLF001 finds them."""
    rule = ["--isolated", "--select", "SLF001", "--ignore-noqa", "--exit-zero", "--output-format", "json"]
    run = [sys.executable, "-m", "ruff", "check", *rule, *folders]
    found = json.loads(subprocess.run(run, cwd=ROOT, capture_output=True, check=True, text=True).stdout)
    places = {(str(Path(one["filename"]).relative_to(ROOT)), one["location"]["row"]) for one in found}
    return Counter(file for file, _ in places)


def reaches(*folders: str) -> Counter[str]:
    """How many lines of each file reach through an estimator into its learner: `.learner.`, as in what it stores."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").splitlines() for path in files}
    return Counter({file: size for file, text in texts.items() if (size := sum(".learner." in line for line in text))})


def classes() -> Counter[str]:
    """How many classes of the library have each name."""
    texts = [(ROOT / file).read_text(encoding="utf-8") for top in PACKAGES for file, _ in lines(top, (".py", ".pyx"))]
    return Counter(name for text in texts for name in re.findall(r"^ *(?:cdef )?class (\w+)", text, flags=re.MULTILINE))


def anything() -> float:
    """How many times per 1,000 lines `Any` stands in annotations and types of the library, imports aside."""
    files = [one for top in PACKAGES for one in lines(top, (".py", ".pyi"))]
    texts = [
        re.sub("^ *from .*", "", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE) for file, _ in files
    ]
    return 1000 * sum(len(re.findall(r"\bAny\b", text)) for text in texts) / sum(size for _, size in files)


def ours(kind: type) -> list[type]:
    """The classes of ours in the order of resolution of one."""
    return [base for base in kind.__mro__ if base.__module__.startswith("streamdp")]


def members(kind: type) -> tuple[int, int]:
    """How many methods and properties a class has, and how many attributes an object of it has, both of ours."""
    kinds = (FunctionType, property, cached_property, classmethod, staticmethod)
    named = {name for base in ours(kind) for name, value in vars(base).items() if isinstance(value, kinds)}
    return len(named), len(vars(kind()))


def main() -> None:
    """Print the table."""
    import streamdp
    from streamdp.estimators.estimator import Estimator

    estimators = [kind for name in streamdp.__all__ if isinstance(kind := getattr(streamdp, name), type)]
    estimators = [kind for kind in estimators if issubclass(kind, Estimator)]
    largest = max((kind for kind in estimators if kind.__name__ != "Statistics"), key=members)
    rooms, library, tests = by_room(), private(*PACKAGES), private("tests")
    reached = reaches("tests")
    for room, (size, of_code, files) in rooms.items():
        print(f"{room:28}{size:7,} lines {of_code:7,} of code {files:4} files")
    methods, attributes = members(largest)
    for what, number in {
        "lines of the library": sum(size for size, _, _ in rooms.values()),
        "lines of code of the library": sum(size for _, size, _ in rooms.values()),
        "files of the library": sum(files for _, _, files in rooms.values()),
        "lines of tests": sum(size for _, size in lines("tests", (".py",))),
        "lines of benchmarks and studies": sum(
            size for at in ("benchmarks", "studies") for _, size in lines(at, (".py",))
        ),
        "most classes of ours above an estimator": max(len(ours(kind)) for kind in estimators),
        f"methods of {largest.__name__}": methods,
        f"attributes of {largest.__name__}": attributes,
        "lines of the library that read private attributes of others": library.total(),
        "lines of tests that touch private attributes": tests.total(),
        "lines of tests that reach into the learner of an estimator": reached.total(),
        "names that several classes have": sum(size > 1 for size in classes().values()),
        "`Any` per 1,000 lines": round(anything(), 1),
    }.items():
        print(f"{what:62}{number:7,}")


if __name__ == "__main__":
    main()
