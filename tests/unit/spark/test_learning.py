"""Which batches of a stream are learned, without Spark around it."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from streamdp.errors import ConfigError
from streamdp.spark import learning
from streamdp.spark.learning import StreamLearner

SCHEMA = {"features": {"a": [0, 1]}, "target": {"column": "y", "bounds": [0, 1]}}


class Committed:
    """A driver that commits what it is given."""

    def __init__(self) -> None:
        self.position: dict[str, Any] = {}

    def learn(self, frame: object, mark: dict[str, Any]) -> None:
        self.position = mark


def frame(query: str) -> Any:
    context = SimpleNamespace(getLocalProperty=lambda name: query)
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))


def test_a_batch_is_learned_once_and_none_is_left_out() -> None:
    """Spark repeats the last batch at most. Anything else says that the store or the checkpoint is an old copy."""
    driver: Any = Committed()
    learner = StreamLearner(driver)
    with pytest.raises(ConfigError, match=r"expected batch 0 .* at batch 1"):  # a new store for an old checkpoint
        learner.learn(frame("a"), 1)
    for batch in (0, 1, 1, 2):
        learner.learn(frame("a"), batch)
        assert driver.position == {"frames": [], "query": "a", "batch": batch}
    before = driver.position
    learner.learn(frame("a"), 2)
    assert driver.position is before
    for wrong in (0, 1, 4):
        with pytest.raises(ConfigError, match=rf"expected batch 3 .* at batch {wrong}"):
            learner.learn(frame("a"), wrong)
    with pytest.raises(ConfigError, match="another checkpoint"):
        learner.learn(frame("b"), 3)
    assert driver.position is before


def test_a_stream_begins_after_frames() -> None:
    driver: Any = Committed()
    driver.position = {"query": None, "batch": None, "frames": ["whole"], "dead_letters": {}}
    StreamLearner(driver).learn(frame("a"), 0)
    assert driver.position == {"query": "a", "batch": 0, "frames": ["whole"], "dead_letters": {}}


def test_data_of_a_known_name_are_not_learned_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a daily run without --name said "done" of data that it did not read."""
    driver: Any = Committed()
    driver.position, driver.show, driver.counts = {"frames": ["whole"]}, lambda: None, "those of before"
    monkeypatch.setattr(learning, "Driver", lambda *_: nullcontext(driver))
    monkeypatch.setattr(learning, "_session", lambda df: df)
    given: Any = SimpleNamespace(isStreaming=False)
    with pytest.warns(UserWarning, match="'whole', and learns nothing now: give other data another name"):
        assert (
            learning.learn(given, {"job": "a", "schema": SCHEMA, "model": {"trust": "nobody", "budget": "eps=1"}})
            == driver.counts
        )
