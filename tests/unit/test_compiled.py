"""Compiled modules: their stubs are true, and they keep to the floors of the rooms."""

import ast
import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SOURCES = sorted(path for top in ("streamdp", "connectors") for path in (ROOT / top).rglob("*.pyx"))
STUBS = [path for path in (source.with_suffix(".pyi") for source in SOURCES) if path.exists()]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def functions(stub: Path) -> dict[str, list[str]]:
    """The functions of a stub, with the names of their parameters."""
    tree = ast.parse(stub.read_text())
    return {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("stub", STUBS, ids=name_of)
def test_a_stub_says_what_its_module_has(stub: Path) -> None:
    module = import_module(name_of(stub))
    compiled = {
        name: list(inspect.signature(thing).parameters)
        for name, thing in vars(module).items()
        if type(thing).__name__ == "cython_function_or_method" and not name.startswith("__")
    }
    assert functions(stub) == compiled
    declared = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.AnnAssign)]
    for node in declared:
        if ast.unparse(node.annotation) != "TypeAlias":
            kind = ast.unparse(node.annotation).partition("[")[0]
            assert type(getattr(module, ast.unparse(node.target))).__name__ == kind


def test_every_module_of_which_python_uses_something_has_a_stub() -> None:
    for source in SOURCES:
        shared = source.with_suffix(".pxd")
        text = source.read_text() + (shared.read_text() if shared.exists() else "")
        used = re.search(r"^((cp)?def|cdef class|cpdef enum)\b", text, re.MULTILINE)
        assert bool(used) == (source.with_suffix(".pyi") in STUBS), source


def test_compiled_modules_keep_to_the_floors() -> None:
    """`lint-imports` reads Python only."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    floor = {room.strip(): number for number, layer in enumerate(layers) for room in layer.split("|")}
    assert SOURCES
    for source in [*SOURCES, *(path for top in ("streamdp", "connectors") for path in (ROOT / top).rglob("*.pxd"))]:
        top, room = source.relative_to(ROOT).parts[:2]
        pattern = r"^\s*(?:from|cimport|import) (streamdp|connectors)\.(\w+)"
        for package, other in re.findall(pattern, source.read_text(), re.MULTILINE):
            assert package == top, source
            assert package == "connectors" or floor[other] >= floor[room], f"{source} imports {other}"
