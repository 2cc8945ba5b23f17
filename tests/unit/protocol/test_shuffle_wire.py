"""What the three parties agree on and what travels between them: what is refused, and what devices do."""

import contextlib
import json
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamdp.aggregation import binomial
from streamdp.aggregation.shuffled_sum import LocalRandomizer, Shuffled
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, SchemaError
from streamdp.optim import loops
from streamdp.privacy.entropy import SeededEntropy
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.devices import ShuffleDevice
from streamdp.protocol.shuffle_wire import (
    NONCE_BYTES,
    Assembly,
    cut,
    read_announcement,
    read_key,
    read_message,
    read_part,
    write_announcement,
)
from tests.support.shuffle_model import PEOPLE, announced, model

# -- what devices refuse ---------------------------------------------------------------------------------------------


def test_a_device_answers_once() -> None:
    noted: list[int] = []
    device = ShuffleDevice(Agreement(model()), note=lambda: noted.append(1))
    with pytest.raises(SchemaError):
        device.answer(b"{}", {"a": 0.0, "b": 0.0}, 1.0)
    assert not device.answered  # nothing was made
    key, value = device.answer(announced(), {"a": 0.5, "b": -0.5}, 1.0)
    assert noted == [1]
    params = Agreement(model()).params((0, 0, 0))
    assert read_key(key, Agreement(model()).digest) == (0, 0, 0)
    assert len(read_message(value, params)[1]) == params.message_bytes
    with pytest.raises(NotAvailableError, match="answered"):
        device.answer(announced(), {"a": 0.5, "b": -0.5}, 1.0)


def test_an_exception_after_the_note_makes_no_second_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ShuffleDevice(Agreement(model()))
    with monkeypatch.context() as patch:
        patch.setattr(LocalRandomizer, "messages", None)
        with pytest.raises(TypeError):
            device.answer(announced(), {"a": 0.5, "b": -0.5}, 1.0)
    with pytest.raises(NotAvailableError, match="answered"):
        device.answer(announced(), {"a": 0.5, "b": -0.5}, 1.0)


@pytest.mark.parametrize(
    "record", [({"a": "HIV"}, 1.0), ({"a": 10**400}, 1.0), ({"a": 0.5}, 2.0), ({"a": 0.5}, [1.0, 1.0])]
)
def test_a_bad_record_has_not_answered(record: Any) -> None:
    noted: list[int] = []
    device = ShuffleDevice(Agreement(model()), note=lambda: noted.append(1))
    with pytest.raises(SchemaError):
        device.answer(announced(), *record)
    assert (device.answered, noted) == (False, [])


def test_threads_that_share_a_device_answer_once() -> None:
    begun = threading.Barrier(2)
    device = ShuffleDevice(Agreement(model()), note=lambda: time.sleep(0.05))

    def answer(_: int) -> bool:
        begun.wait()
        try:
            device.answer(announced(), {"a": 0.5, "b": -0.5}, 1.0)
        except NotAvailableError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(answer, range(2))) == [False, True]


@pytest.mark.parametrize("method", ["ac-sa", "newton"])
def test_a_device_does_not_take_the_loss_from_a_foreign_spec(method: str) -> None:
    """Another kappa or clip would make vectors that are farther apart than the noise is made for."""
    change = {"horizon": None} if method == "newton" else {}
    ours = model(loss="logistic", method=method, **change).randomizer
    X, y = np.random.default_rng(0).normal(0, 5, (50, 2)), np.ones(50)
    for index in set(range(len(ours.spec))) - {loops.ENVELOPE}:
        spec = ours.spec.copy()
        spec[index] = 7.0
        theirs = replace(ours, spec=spec, rng=SeededEntropy(1))
        assert np.array_equal(theirs.messages_of(X, y), replace(ours, rng=SeededEntropy(1)).messages_of(X, y))
    for envelope in (np.nan, np.inf, -1.0):
        spec = ours.spec.copy()
        spec[loops.ENVELOPE] = envelope
        with pytest.raises(ConfigError, match="envelope"):
            replace(ours, spec=spec)


@pytest.mark.parametrize("options", [{}, {"horizon": None, "batch_size": None}, {"horizon": None, "method": "newton"}])
def test_no_batch_of_an_announcement_raises_anything_else(options: dict[str, Any]) -> None:
    said, agreed = json.loads(announced(**options)), Agreement(model(**options))
    for place in ([49, 0, 0], [53, 0, 0], [63, 0, 0], [0, 0, 10**18], [0, 0, 2**63 - 1], [2**62, 2**62, 2**62]):
        with contextlib.suppress(SchemaError, ConfigError):
            agreed.accept(json.dumps(said | {"batch": place}).encode())
    for number in (10**400, -(10**400)):
        with pytest.raises(SchemaError):
            agreed.accept(json.dumps(said | {"point": [number, 0, 0]}).encode())


@pytest.mark.slow
def test_an_announcement_is_compared_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    said, agreed = json.loads(announced()), Agreement(model())
    agreed.accept(announced())  # the agreed sum is known
    long = json.dumps(said | {"point": [0.0] * 10_000_000}).encode()
    tracemalloc.start()
    with pytest.raises(SchemaError, match="too long"):
        agreed.accept(long)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    monkeypatch.setattr(binomial, "spent_delta", None)
    for other in ({"users": 10**9, "b": 68}, {"g": 2**40, "b": 2**40}, {"d": 10**6}):
        with pytest.raises(ConfigError, match="refused"):
            agreed.accept(json.dumps(said | {"sum": said["sum"] | other}).encode())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budget": "eps=5,delta=1e-4"}, "another budget"),
        ({"budget": "eps=4,delta=2e-4"}, "another budget"),
        ({"batch_size": PEOPLE - 1}, "another number of people"),
        ({"batch_size": PEOPLE + 1}, "another number of people"),
        ({"loss": "hinge", "smoothness": 1.0}, "another"),
        ({"features": ["a", "c"]}, "another features"),
        ({"domain": None, "horizon": 10 * PEOPLE}, "another agreement"),
    ],
)
def test_a_device_refuses_another_agreement(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Agreement(model()).accept(announced(**changes))
    with pytest.raises(ConfigError, match="another agreement"):
        Agreement(model(), minimum_share=0.9).accept(announced())
    with pytest.raises(ConfigError, match="another agreement"):
        Agreement(model(), about="another schema").accept(announced())


def test_a_device_refuses_a_sum_that_does_not_keep_its_budget() -> None:
    said = json.loads(announced())
    for weaker in ({"b": said["sum"]["b"] // 2}, {"users": 2}, {"sensitivity": 10.0}, {"d": 0}):
        text = json.dumps(said | {"sum": said["sum"] | weaker}).encode()
        with pytest.raises((BudgetError, ConfigError)):
            Agreement(model()).accept(text)
    # a sum that keeps the budget, but not for this loss, or for a larger crowd than there is
    for other in ({"sensitivity": 0.1}, {"users": 10**6, "b": 1}, {"b": said["sum"]["b"] + 1}):
        text = json.dumps(said | {"sum": said["sum"] | other}).encode()
        with pytest.raises((BudgetError, ConfigError)):
            Agreement(model()).accept(text)


def test_what_is_no_announcement() -> None:
    said = json.loads(announced())
    broken: list[Any] = [
        None,
        [],
        1,
        {},
        "x",
        said | {"format": 2},
        said | {"format": True},
        said | {"point": [0.0, 0.0]},
    ]
    broken += [said | {"point": [float("nan"), 0, 0]}, said | {"point": ["0", 0, 0]}, said | {"batch": [0, 0]}]
    for place in ([-1, 0, 0], [0, 9, 0], [0, 0, 999], [64, 0, 0], [2**63, 0, 0], [0, 0, 2.0]):
        broken.append(said | {"batch": place})
    broken += [said | {"sum": said["sum"] | {name: None}} for name in said["sum"]]
    broken += [said | {"sum": said["sum"] | {"budget": "eps=1"}}, said | {"features": [1, 2]}]
    broken += [{k: v for k, v in said.items() if k != name} for name in said]
    for what in [*map(json.dumps, broken), "", "\xff", "[" * 100_000, announced().decode()[:-1]]:
        with pytest.raises((SchemaError, ConfigError)):
            Agreement(model()).accept(what.encode("latin-1"))
    assert Agreement(model()).accept(announced()).batch == (0, 0, 0)


def test_what_no_agreement_can_be_made_of() -> None:
    with pytest.raises(ConfigError, match="declared features"):
        Agreement(model(features=None))
    with pytest.raises(ConfigError, match="Shuffle"):
        Agreement(object())
    for share in (0.0, 1.1, -1.0):
        with pytest.raises(ConfigError, match="minimum_share"):
            Agreement(model(), minimum_share=share)


@pytest.mark.parametrize("changes", [{"strong_convexity": 0.5}, {"loss": "hinge"}, {"method": "sgd"}])
def test_the_agreement_walks_through_the_plan_as_the_learner_does(changes: dict[str, Any]) -> None:
    learner = model(**{"horizon": 100, "batch_size": None} | changes)
    agreed, place = Agreement(learner), (0, 0, 0)
    while place[0] < 2:
        assert learner.batch == place
        theirs = learner.randomizer
        params = theirs.params
        ours = agreed.randomizer(place, theirs.point)
        assert (ours.params, ours.batch) == (params, theirs.batch)
        assert np.array_equal(ours.spec, theirs.spec)
        learner.absorb(Shuffled(np.zeros((3, (params.users * (params.g + params.b) + 7) // 8), np.uint8), params.users))
        place = agreed.after(place)


# -- what travels ----------------------------------------------------------------------------------------------------


def test_a_mixed_batch_in_parts() -> None:
    params = Agreement(model()).params((0, 0, 0))
    width = (15 * (params.g + params.b) + 7) // 8
    mixed = Shuffled(np.arange(3 * width, dtype=np.uint64).astype(np.uint8).reshape(3, width), 15)
    digest, place, name = "ab" * 16, (1, 2, 3), b"n" * 16
    for size in (1, 7, width, 3 * width, 10**6):
        parts = [read_part(text, digest) for text in cut(mixed, digest, place, name, size)]
        assembly = Assembly(params)
        *before, last = [assembly.add(part) for part in parts]
        assert before == [None] * (len(parts) - 1)
        assert last.users == 15
        assert np.array_equal(last.bits, mixed.bits)
    parts = [read_part(text, digest) for text in cut(mixed, digest, place, name, 20)]
    for bad in (
        parts[1:],
        parts[:1] * 2,
        [parts[0], parts[2]],
        [replace(parts[0], users=21)],
        [replace(parts[0], users=0)],
    ):
        assembly = Assembly(params)
        with pytest.raises(SchemaError):
            [assembly.add(part) for part in bad]
    whole = next(cut(mixed, digest, place, name))
    for text in (None, b"", whole[:40], b"x" + whole[1:], whole[:4] + b"x" * 16 + whole[20:]):
        with pytest.raises(SchemaError):
            read_part(text, digest)


def test_the_public_parts_compose() -> None:
    """An embedded device, a shuffler and a learner by hand, as docs/shuffle_protocol.md describes them."""
    learner = model()
    agreed = Agreement(model())
    text = write_announcement(agreed.announcement(learner.batch, learner.randomizer.point))
    assert read_announcement(text).sum.budget == learner.randomizer.params.budget
    values = [ShuffleDevice(agreed).answer(text, {"a": 0.1, "b": 0.2}, 1.0)[1] for _ in range(PEOPLE)]
    assert len({value[:NONCE_BYTES] for value in values}) == PEOPLE
