"""An error that may have been raised in the middle of another one shows nothing of it."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from streamdp.errors import SourceError, raise_alone
from tests.support.paths import ROOT


@contextmanager
def translated() -> Iterator[None]:
    with suppress(ValueError):
        yield
    raise_alone(SourceError("a record cannot be read"))


def test_an_error_of_a_context_manager_has_no_context() -> None:
    with pytest.raises(SourceError) as caught, translated():
        raise ValueError("HIV 4711")
    assert caught.value.__cause__ is caught.value.__context__ is None


def handling(tree: ast.AST, inside: bool = False) -> Iterator[ast.Raise]:
    """The `raise` statements that another error may come before: in an except block, or after a context's `yield`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise) and inside and node.exc is not None:
            yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from handling(node)
        else:
            yield from handling(node, inside or isinstance(node, ast.ExceptHandler))
    if any("contextmanager" in ast.unparse(decorator) for decorator in getattr(tree, "decorator_list", ())):
        first = min(node.lineno for node in ast.walk(tree) if isinstance(node, ast.Yield))
        yield from (n for n in ast.walk(tree) if isinstance(n, ast.Raise) and n.exc is not None and n.lineno > first)


def chained(text: str) -> list[int]:
    """The lines that raise an error with the one that is handled: `raise_alone` and `from None` leave it out."""
    found = [node for node in handling(ast.parse(text)) if ast.unparse(node.cause or node) != "None"]
    return sorted({node.lineno for node in found})


@pytest.mark.slow
def test_no_error_is_raised_with_the_one_that_is_handled() -> None:
    """The text of a library's error may quote a value, a statement with its parameters, or a setting."""
    files = [path for room in ("streamdp", "connectors") for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(files) > 200
    found = {str(path.relative_to(ROOT)): lines for path in files if (lines := chained(path.read_text()))}
    assert found == {}


def test_the_audit_finds_each_way_to_raise_with_another_error() -> None:
    assert chained("try: f()\nexcept E as e:\n raise G from e\n") == [3]
    assert chained("try: f()\nexcept E as e:\n if e: raise G\n raise\n") == [3]
    assert chained("try: f()\nexcept E:\n raise G from None\nraise H\n") == []
    context = "@contextmanager\ndef f():\n try:\n  yield\n except E:\n  name = 1\n {}\n"
    assert chained(context.format("raise G")) == [7]
    assert chained(context.format("raise_alone(G)")) == []
