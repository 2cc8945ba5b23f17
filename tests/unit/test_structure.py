"""Estimators are composed: few classes above each, and one owner for each attribute."""

import ast
import inspect
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import streamdp
from benchmarks.paths import calls, figures, runs
from streamdp import learners
from streamdp.estimators.estimator import Estimator
from streamdp.estimators.parameters import Parameters
from streamdp.learners.learner import Learner
from tests.support.structure import ours, private, reaches

PUBLIC = [value for name in streamdp.__all__ if isinstance(value := getattr(streamdp, name), type)]
ESTIMATORS = [kind for kind in PUBLIC if issubclass(kind, Estimator)]
LEARNERS = sorted(
    {
        kind
        for module in pkgutil.iter_modules(learners.__path__)
        for kind in vars(import_module(f"streamdp.learners.{module.name}")).values()
        if isinstance(kind, type) and issubclass(kind, Learner)
    },
    key=lambda kind: kind.__name__,
)


@cache
def set_in(kind: type) -> set[str]:
    """The attributes of itself that a class sets, in its own methods."""
    tree = ast.parse(inspect.getsource(kind))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_there_are_estimators_and_learners() -> None:
    assert len(ESTIMATORS) == 12
    assert len(LEARNERS) >= 8


@pytest.mark.parametrize("kind", [*ESTIMATORS, *LEARNERS])
def test_there_are_at_most_five_classes_with_methods_in_any_order_of_resolution(kind: type) -> None:
    assert len([one for one in ours(kind) if one is not Parameters]) <= 5


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_attributes_of_an_estimator_are_set_in_one_class(kind: type) -> None:
    owners: dict[str, type] = {}
    for base in ours(kind):
        for name in set_in(base):
            assert owners.setdefault(name, base) is base, name


def test_learners_know_no_names_no_records_and_no_ledger() -> None:
    """By their imports when they run; types may be named."""
    for module in pkgutil.iter_modules(learners.__path__):
        path = Path(str(import_module(f"streamdp.learners.{module.name}").__file__))
        tree: Any = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith(("river", "streamdp.ledger", "streamdp.store", "streamdp.estimators"))


def test_private_attributes_are_read_in_their_class() -> None:
    """The numbers of lines may fall only. In the library these are copies and merges within a class, and clients."""
    assert private("streamdp", "connectors").total() <= 30
    assert private("tests").total() <= 95
    assert reaches("tests").total() <= 111


@pytest.mark.no_cover  # it is a profiler itself
@pytest.mark.filterwarnings("ignore")
def test_one_record_with_a_subject_enters_few_calls_and_files() -> None:
    found = {name: figures(calls(run, package)) for name, package, run in runs() if name.endswith("subject and ledger")}
    assert len(found) == 8
    for name, (n, files, _, climbs) in found.items():
        assert (n <= 30, files <= 10, climbs <= 3) == (True, True, True), name
