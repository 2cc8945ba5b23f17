"""`save` and `load`: bit for bit, at boundaries only, and no file but our own is read."""

import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamdp
from streamdp import (
    ApproxDP,
    Huber,
    L2Ball,
    LDPASGDClassifier,
    LDPASGDRegressor,
    LDPSGDClassifier,
    Ledger,
    PanPrivateClassifier,
    PrivUnit,
    ShuffleRegressor,
    UserLevelLDPRegressor,
    WindowedClassifier,
)
from streamdp.errors import ConfigError, NotAtBoundaryError, StoreDamagedError, StoreError, StoreVersionError
from streamdp.estimators import Statistics

DELTA = ApproxDP(1.0, 1e-6)
FEATURES = {"age": (18, 90), "city": {"categories": ["Paris", "Lyon"], "other": True}}
MODELS: list[Any] = [
    LDPASGDRegressor(features=FEATURES, target=(0, 5), budget="eps=2"),
    LDPASGDClassifier(features=["a", "b"], classes=["x", "y", "z"]),
    LDPSGDClassifier(features=["a", "b"], mechanism=PrivUnit, domain=L2Ball(2), seed=3),
    LDPASGDRegressor(features=["a", "b"], loss=Huber(clip=3.0)),
    PanPrivateClassifier(features=["a", "b"], budget=DELTA),
    ShuffleRegressor(features=["a", "b"], budget=DELTA, batch_size=600),
    UserLevelLDPRegressor(features=["a", "b"], budget=DELTA, items_per_user=2, window=100),
    WindowedClassifier(features=["a", "b"], budget=DELTA),
]


def learned(model: Any, n: int = 20) -> Any:
    model = model.clone()
    if model.at_boundary and type(model).__name__.startswith("LDP"):
        rng = np.random.default_rng(0)
        model.learn_encoded(rng.uniform(-1, 1, (n, len(model.feature_names))), rng.integers(0, 2, n))
    return model


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_what_is_saved_is_loaded(tmp_path: Path, model: Any) -> None:
    model = learned(model)
    model.save(tmp_path / "model.json")
    again = streamdp.load(tmp_path / "model.json")
    assert type(again) is type(model)
    assert again.state_dict().keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert np.array_equal(np.asarray(again.state_dict()[key], object), np.asarray(value, object)), key
    assert (again.n_seen, again.weights, again.guarantee) == (model.n_seen, model.weights, model.guarantee)
    assert again.statement() == model.statement()
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "model.json").read_text()


def test_only_the_owner_may_read_it_and_no_draft_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("older")
    path.chmod(0o644)
    learned(MODELS[0]).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["model.json"]
    with pytest.raises(StoreError, match="cannot write"):
        learned(MODELS[0]).save(tmp_path / "no" / "model.json")


def test_a_pipe_or_a_device_is_not_replaced_and_a_link_stays_one(tmp_path: Path) -> None:
    """As root, a model that was saved as /dev/null, or exported to /dev/stdout, took its place."""
    model, pipe, link = LDPASGDRegressor(features=["a"]), tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(StoreError, match="not a regular file"):
            model.save(str(path))
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    pipe.unlink()
    model.save(str(link))
    assert (link.is_symlink(), pipe.is_file()) == (True, True)


def test_parameters_that_numpy_made(tmp_path: Path) -> None:
    made = {"classes": np.unique([2, 0, 1]), "eta": np.float32(0.5)}
    for classes in (made["classes"], list(made["classes"])):
        model = LDPASGDClassifier(features={"a": np.array([0, 1])}, **made | {"classes": classes})
        model.learn_one({"a": 0.5}, 2)
        model.save(tmp_path / "m")
        read = streamdp.load(tmp_path / "m")
        assert read.weights == model.weights
        assert read.predict_proba_one({"a": 0.1}) == model.predict_proba_one({"a": 0.1})


def test_no_state_within_a_batch_and_no_ledger(tmp_path: Path) -> None:
    pan = PanPrivateClassifier(features=["a"], budget=DELTA)
    pan.learn_one({"a": 0.5}, True)
    with pytest.raises(NotAtBoundaryError):
        pan.save(tmp_path / "m")
    with pytest.raises(ConfigError, match="kept by a Store"):
        LDPASGDRegressor(features=["a"], ledger=Ledger("eps=1")).save(tmp_path / "m")
    with pytest.raises(ConfigError, match="plain values"):
        LDPASGDClassifier(features=["a"], classes=[frozenset(), 1]).save(tmp_path / "m")
    for named in (LDPASGDRegressor(features=[("a", 1)]), LDPASGDClassifier(features=["a"], classes=[("x", 1), "y"])):
        with pytest.raises(ConfigError, match="text as names"):  # JSON has no tuples: no file could be loaded
            named.save(tmp_path / "m")
    with pytest.raises(ConfigError, match="text as names"):
        LDPASGDRegressor(features={1: (0, 1)}).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def changed(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    for content in (b"", b"\xff", b"[]", b'{"format": "x"}', b"[" * 100_000, pickle.dumps({"a": 1})):
        path.write_bytes(content)
        with pytest.raises(StoreDamagedError, match="that the method save of a model wrote"):
            streamdp.load(path)
    with pytest.raises(StoreError, match="cannot read"):
        streamdp.load(tmp_path / "nowhere")
    learned(MODELS[0]).save(path)
    text = path.read_text()
    for place in range(100, len(text), 97):
        path.write_text(text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :])
        with pytest.raises(StoreError):
            streamdp.load(path)
    path.write_text(text)
    changed(path, version=2)
    with pytest.raises(StoreVersionError):
        streamdp.load(path)


def test_a_forged_file_builds_nothing_but_estimators(tmp_path: Path) -> None:
    from streamdp.estimators.saving import checksum

    path = tmp_path / "model.json"
    learned(MODELS[0]).save(path)
    good = json.loads(json.loads(path.read_text())["model"])
    for change in (
        {"estimator": "os"},
        {"estimator": "__name__"},
        {"parameters": {"loss": {"loss": "x"}}},
        {"state": "{}"},
    ):
        text = json.dumps(good | change)
        changed(path, model=text, checksum=checksum(text))
        with pytest.raises(StoreDamagedError, match="no model that this version can build"):
            streamdp.load(path)


def test_a_notebook_shows_weights_and_the_statement() -> None:
    page = learned(MODELS[1])._repr_html_()
    assert "LDPASGDClassifier" in page
    assert page.count("<tr>") == 1 + 3 * 3
    assert "eps=1" in page
    script = LDPASGDRegressor(features=["<script>"])
    assert "<script>" not in script._repr_html_()


def test_a_notebook_shows_statistics() -> None:
    """It said "no weights yet" for ever."""
    model = Statistics({"<i>": {"mean": "x", "by": "g"}}, {"x": (0, 9), "g": ["<b>", "b"]}, batch_size=10)
    assert "not known yet" in model._repr_html_()
    for _ in range(10):
        model.learn_one({"x": 1, "g": "b"})
    page = model._repr_html_()
    assert page.count("<tr>") == 1 + 2
    assert "<i>" not in page
    assert "&lt;i&gt; &lt;b&gt;" in page
