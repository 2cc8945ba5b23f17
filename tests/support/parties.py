"""The three parties of the shuffle protocol over logs in memory, each of which may crash at any moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from streamdp import ShuffleClassifier
from streamdp.errors import SourceError
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.cohort import CohortSimulator
from streamdp.protocol.devices import DeviceSimulator, Notes
from streamdp.protocol.learner import ShuffleLearner
from streamdp.protocol.shuffle_wire import Place
from streamdp.protocol.shuffler import Mixer
from streamdp.store.snapshot import Counts
from streamdp.store.state_codec import decode_state, encode_state
from tests.support.memory import END, MemorySource
from tests.support.shuffle_model import forwarded, model


class Item(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class Crash(Exception):
    """What the test throws where a process would die."""


class Topic:
    """A log in memory; `first` moves as it is forgotten."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self.tick = tick
        self.items: list[Item] = []
        self.first = 0

    def add(self, key: bytes | None, value: bytes | None, timestamp: int = 0) -> None:
        self.items.append(Item(len(self.items), key, value, timestamp))


class Reader:
    id = None

    def __init__(self, topic: Topic, forgets: bool = True) -> None:
        self.topic, self.at, self.forgets = topic, 0, forgets

    def seek(self, offset: int) -> int:
        if offset > self.end():
            raise SourceError("past the end")
        self.at = max(offset, self.topic.first)
        return self.at

    def end(self) -> int:
        return len(self.topic.items)

    def poll(self, timeout_s: float) -> list[Item]:
        found = self.topic.items[max(self.at, self.topic.first) :][:17]
        self.at = found[-1].offset + 1 if found else self.at
        return found

    def forget(self, before: int) -> None:
        if self.forgets:
            self.topic.first = max(self.topic.first, before)


class Writer:
    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.opened_at = len(topic.items)

    def send(self, key: bytes | None, value: bytes | None, *, timestamp_ms: int | None = None) -> None:
        self.topic.tick()
        self.topic.add(key, value, timestamp_ms or 0)
        self.topic.tick()

    def flush(self) -> None:
        self.topic.tick()

    def end(self) -> int:
        return self.opened_at


class Kept:
    """What a store keeps, of a process that may die before and after each commit."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self.tick = tick
        self.text = ""

    def load(self) -> Any:
        if not self.text:
            return None
        said = decode_state(self.text)
        return SimpleNamespace(counts=Counts(*said["counts"]), position=said["position"], state=said["state"])

    def commit(self, state: Any, position: Any, counts: Counts) -> None:
        self.tick()
        self.text = encode_state({"state": state, "position": position, "counts": list(astuple(counts))})
        self.tick()


class World:
    """Records, topics and stores; parties that are built anew from them whenever one has crashed."""

    def __init__(
        self,
        folder: Path,
        records: int,
        share: float = 1.0,
        crash_at: int | None = None,
        part_bytes: int = 40,
        **changes: Any,
    ) -> None:
        self.changes, self.part_bytes = changes, part_bytes
        self.folder, self.crash_at, self.ticks = folder, crash_at, 0
        sends = itertools.count()
        self.points, self.shuffled = Topic(self.tick), Topic(self.tick)
        self.messages = Topic(lambda: self.tick() if next(sends) % 7 == 0 else None)
        self.agreed = Agreement(self.model(), share)
        rng = np.random.default_rng(5)
        X = rng.uniform(-1, 1, (records, 2)).tolist()
        self.items: list[Any] = [*(({"a": a, "b": b}, float(a > 0), None, None) for a, b in X), END]
        self.now, self.crashes = 0.0, 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stores = {name: Kept(self.tick) for name in ("learner", "shuffler")}
        self.parties: dict[str, Any] = {}

    def model(self) -> ShuffleClassifier:
        return model(**self.changes)

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.crash_at:
            raise Crash

    def tell(self, event: str, **numbers: Any) -> None:
        self.events.append((event, numbers))

    def build(self, name: str) -> Any:
        if name == "devices":
            source = MemorySource(self.items, ("a", "b"))
            notes = Notes(str(self.folder / "notes"), self.agreed)
            kind: Any = DeviceSimulator if self.agreed.rounds is None else CohortSimulator
            return kind(self.agreed, source, Reader(self.points), Writer(self.messages), notes, tell=self.tell)
        if name == "shuffler":
            readers = Reader(self.messages), Writer(self.shuffled), self.stores[name]
            clock = {"wait_seconds": 10.0 if self.agreed.minimum_share < 1 else float("inf"), "clock": lambda: self.now}
            return Mixer(self.agreed, *readers, **clock, tell=self.tell, part_bytes=self.part_bytes)
        readers = Reader(self.shuffled), Writer(self.points), self.stores[name]
        return ShuffleLearner(self.agreed, self.model(), *readers, tell=self.tell)

    def step(self, name: str) -> bool:
        try:
            if name not in self.parties:
                self.parties[name] = self.build(name)
            return bool(self.parties[name].step(0.0))
        except Crash:
            self.parties.pop(name, None)
            self.crashes += 1
            return True

    def run(self) -> World:
        quiet = 0
        while quiet < 3:
            moved = [self.step(name) for name in ("learner", "devices", "shuffler")]
            quiet = 0 if any(moved) else quiet + 1
        return self

    def forwarded(self) -> dict[Place, list[tuple[int, list[int]]]]:
        return forwarded((item.value for item in self.shuffled.items), self.agreed)


def noted(one: World, simulator: Any, record: Any, allowed: Sequence[float | None], **given: Any) -> tuple[Any, Notes]:
    """Devices of records that allow so much, which a simulator lets answer the learner's first point; their notes."""
    source = MemorySource([*((record, 0.0, None, budget) for budget in allowed), END], ("a", "b"))
    notes = Notes(str(one.folder / "other"), one.agreed)
    one.step("learner")
    return simulator(one.agreed, source, Reader(one.points), Writer(one.messages), notes, **given), notes
