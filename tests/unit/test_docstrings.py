"""Docstrings keep up with the code: parameters are described, and every name in backticks exists."""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from docstring_parser import numpydoc

from tests.support.paths import ROOT

FILES = sorted(
    path
    for top in ("streamdp", "connectors")
    for path in (ROOT / top).rglob("*.p*")
    if path.suffix in (".py", ".pyi", ".pyx", ".pxd")
)
PYTHON = [path for path in FILES if path.suffix in (".py", ".pyi")]
"""A stub stands for the functions of its compiled module, and has no docstrings."""
MODULES: dict[str, list[Path]] = {}
for module_path in FILES:
    MODULES.setdefault(module_path.stem, []).append(module_path)


Function = ast.FunctionDef | ast.AsyncFunctionDef

REFERENCE = re.compile(r"^(See|As) `[\w.]+`")
"""A docstring that begins so leaves the parameters to the function that it names, usually a protocol's."""


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


def public(body: list[ast.stmt], within: str = "") -> Iterator[tuple[str, Function]]:
    """Functions and methods whose names and classes have no leading underscore, by dotted name."""
    for node in body:
        if isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__init__"):
            yield f"{within}{node.name}", node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node.body, f"{node.name}.")


def is_command(function: Function) -> bool:
    """Whether the command line or the OpenAPI page documents it: each option carries its help."""
    return any(re.search("command|^router", ast.unparse(decorator)) for decorator in function.decorator_list)


def is_setter(function: Function) -> bool:
    """Whether it sets a property, which has only one docstring: that of the getter."""
    return any(ast.unparse(decorator).endswith(".setter") for decorator in function.decorator_list)


def is_composed(node: ast.stmt) -> bool:
    """Whether a decorator completes the docstring of a class when its module is imported."""
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(decorator).startswith("documented(") for decorator in node.decorator_list
    )


def module(path: Path) -> ModuleType:
    return import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def composed(path: Path, node: ast.ClassDef) -> str:
    """The docstring of a class as a user sees it: it has what the code says, and no placeholder."""
    text = inspect.cleandoc(vars(vars(module(path))[node.name])["__doc__"])
    assert text.startswith((ast.get_docstring(node) or "-").partition("\n")[0])
    assert not re.search(r"\{\w*\}", text)
    return text


@cache
def names_for_programs() -> frozenset[str]:
    """What the pages of the reference show: all else is internal."""
    found = set()
    for page in ("python", "job"):
        source = text(ROOT / "docs" / "reference" / f"{page}.md")
        for kind, name in re.findall(r"^\.\. auto(\w+):: ([\w.]+)", source, re.MULTILINE):
            found |= set(vars(import_module(name))) if kind == "module" else {name.rpartition(".")[2]}
        for name in re.findall(r"^   (streamdp\.[\w.]+)$", source, re.MULTILINE):  # an entry of autosummary
            module_of_its_own = name.count(".") == 1 and find_spec(name) is not None
            found |= set(vars(import_module(name))) if module_of_its_own else {name.rpartition(".")[2]}
    return frozenset(found)


COLLECTIONS = ("Iterable", "Mapping", "Sequence", "dict", "list", "type")


def is_described_by_its_class(annotation: ast.expr | None) -> bool:
    """Whether a type is a class with a docstring of its own, or several of them.

    A number, a text or an array has no unit and no shape.
    """
    if isinstance(annotation, ast.BinOp):
        return is_described_by_its_class(annotation.left) and is_described_by_its_class(annotation.right)
    if isinstance(annotation, ast.Constant):
        return annotation.value is None
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in COLLECTIONS:
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return all(map(is_described_by_its_class, parts))
    return isinstance(annotation, ast.Name) and annotation.id[0].isupper() and annotation.id not in ("Any", "Path")


def undescribed(path: Path) -> list[str]:
    """Methods that neither have nor inherit a docstring, and parameters without a description.

    They have an entry, or a sentence names them in backticks. Those of internal functions need none if their class says
    what they are, or if a sentence names them.
    """
    missing = []
    classes = {node.name: node for node in tree(path).body if isinstance(node, ast.ClassDef)}
    for name, function in public(tree(path).body):
        arguments = function.args
        if path.suffix == ".py" and not ast.get_docstring(function) and function.name != "__init__":
            if not is_setter(function) and not inspect.getdoc(attrgetter(name)(module(path))):
                missing.append(name)
            continue
        every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
        names = [argument.arg for argument in every if argument is not None]
        names = [n for n in names if n not in ("self", "cls") and not n.startswith("_")]
        if not names or is_command(function) or is_setter(function):
            continue
        documented = classes[name.partition(".")[0]] if function.name == "__init__" else function
        if isinstance(documented, ast.ClassDef) and is_composed(documented):
            text = composed(path, documented)
        elif path.suffix == ".pyi":
            text = inspect.getdoc(attrgetter(name.removesuffix(".__init__"))(module(path))) or ""
        else:
            text = ast.get_docstring(documented) or ""
        if REFERENCE.match(text):
            continue
        described = {
            part.strip().lstrip("*") for item in numpydoc.parse(text).params for part in item.arg_name.split(",")
        }
        internal = name.partition(".")[0] not in names_for_programs()
        clear = {a.arg for a in every if a is not None and internal and is_described_by_its_class(a.annotation)}
        told = {n for n in names if re.search(rf"\b{n}\b" if internal else rf"`{n}`", text)}
        missing += [f"{name}: {n}" for n in names if n not in described | clear | told]
    return missing


def test_the_parameters_of_a_public_function_are_described() -> None:
    assert not {str(path): found for path in PYTHON if (found := undescribed(path))}


PROSE = re.compile(r'"""(?:.|\n)*?"""|#.*')
"""Docstrings and comments. A compiled module is no Python, so nothing is parsed."""


@cache
def identifiers() -> frozenset[str]:
    """Every name in the code, and every word of its strings that are no docstrings (settings, SQL, column names)."""
    found = set(keyword.kwlist) | set(dir(builtins))
    for path in [*FILES, *(ROOT / "servers").rglob("*.py")]:
        found |= set(path.relative_to(ROOT).with_suffix("").parts)
        found |= set(re.findall(r"\w+", PROSE.sub("", text(path))))
    return frozenset(found)


def prose(path: Path) -> str:
    """The docstrings and comments of a file."""
    texts = PROSE.findall(text(path))
    if path.suffix == ".py":
        classes = [node for node in tree(path).body if isinstance(node, ast.ClassDef) and is_composed(node)]
        texts += [composed(path, node) for node in classes]
    return "\n".join(texts)


ELSEWHERE = frozenset(
    "tests benchmarks studies examples README pyproject gz jsonl ndjson csv yaml db cryptography dp_accounting".split()  # noqa: SIM905
)
"""Words in backticks that stand outside the two packages: folders, endings of files, libraries used elsewhere."""


def exists(name: str) -> bool:
    """Whether each part of a dotted name is in the code; after a module of ours, in that module."""
    first, *rest = name.split(".")
    modules = MODULES.get(first, []) if len(rest) == 1 and first != "kafka" else []  # the client
    if modules:
        return any(re.search(rf"\b{rest[0]}\b", text(path)) for path in modules) or any(
            (path.parent / first / f"{rest[0]}.py").exists() for path in modules
        )
    return all(part in identifiers() | ELSEWHERE or len(part) < 2 for part in (first, *rest))


def stale(path: Path) -> list[str]:
    """Names in backticks of which no part is in the code any more, files that are not there."""
    out = []
    for name in re.findall(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)", prose(path)):
        if name.endswith(".py"):
            if not any(str(other).endswith(name) for other in ROOT.glob("*/**/*.py")):
                out.append(name)
            continue
        if not exists(name):
            out.append(name)
    out += [
        name
        for name in re.findall(r"(?<![\w/.])((?:tests|benchmarks|studies|docs|streamdp)/[\w/.]+\w)", prose(path))
        if not (ROOT / name).exists()
    ]
    return out


def test_no_docstring_names_what_is_not_there() -> None:
    assert not {str(path): found for path in FILES if (found := stale(path))}


DOCUMENTS = sorted(path for at in ("", "docs/**/", "benchmarks/", "studies/") for path in ROOT.glob(f"{at}*.md"))


def test_no_document_names_a_file_that_is_not_there() -> None:
    file = r"(?<![\w/.-])((?:tests|benchmarks|studies|docs|streamdp|connectors|examples|servers)/[\w/.-]*\w\.\w+)"
    named = {(path.name, name) for path in DOCUMENTS for name in re.findall(file, path.read_text(encoding="utf-8"))}
    assert not [found for found in named if not (ROOT / found[1]).exists()]


FIGURES = re.compile(
    r"\b(told|tells? (of|about|nothing|from|apart)|whom|whoever|swallow\w*|stands? by|mend(s|ed)?|stray|surrender\w*"
    r"|lends?|gets over|for who|(a|the|no) bell|dead (records?|reports?|rows?|messages?)"
    r"|(learned|refused) (and|or) dead)\b|(^|[.:;] )who (has|reads|sends|gives|adds)\b",
    re.IGNORECASE,
)
"""Figures of speech and constructions that cost a reader time; the message of the test says what to write instead."""


def test_texts_use_plain_technical_english() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in [*FILES, *pages]
        for number, line in enumerate(text(path).splitlines(), 1)
        if (match := FIGURES.search(line))
    ]
    assert found == [], "say it in the terms of a textbook: information, shows, identifies, unusable, waits, fix"


def test_the_checks_find_what_they_look_for(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        "def f(a, b, c: str, d: Store | None, e: Store | Any,\n"
        "    g: Sequence[Store], h: Mapping[Store, int]):\n"
        '    """See what `nowhere_at_all` says in `tests/gone.py`, and `losses.gone_too`.\n\n'
        '    Parameters\n    ----------\n    a\n        One.\n    """\n'
    )
    assert undescribed(path) == ["f: b", "f: c", "f: e", "f: h"]
    assert stale(path) == ["nowhere_at_all", "losses.gone_too", "tests/gone.py"]
    compiled = tmp_path / "sample.pyx"
    compiled.write_text(
        'cdef int f(int a):\n    """See `gone_too`."""\n    return here  # as `mix` and `nowhere_at_all` do\n'
    )
    assert stale(compiled) == ["gone_too", "nowhere_at_all"]
