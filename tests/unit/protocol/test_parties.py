"""The three parties without a broker: records that count once, and a crash of each at every moment."""

import json
import os
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp import ApproxDP
from streamdp.errors import SourceError, StoreBusyError, StoreMismatchError
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.devices import DeviceSimulator, Notes, ShuffleDevice
from streamdp.protocol.learner import ShuffleLearner
from streamdp.protocol.shuffle_wire import NONCE_BYTES, message_key, read_part
from streamdp.protocol.shuffler import Mixer
from streamdp.store.snapshot import Counts
from tests.support.parties import Kept, Reader, Topic, World, Writer, noted
from tests.support.shuffle_model import PEOPLE, announced, model


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    def make(**given: Any) -> World:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return World(folder, **given)

    return make


def test_every_record_counts_once(world: Callable[..., World]) -> None:
    one = world(records=5 * PEOPLE + 7).run()
    learner, mixer = one.parties["learner"], one.parties["shuffler"]
    assert learner.counts == Counts(5 * PEOPLE, 0, 0)
    assert mixer.counts == Counts(5 * PEOPLE, 0, 0)
    assert mixer.waiting == 7  # too few: nothing of them is forwarded
    forwarded = one.forwarded()
    assert [len(times) for times in forwarded.values()] == [1] * 5
    assert all(users == PEOPLE for [(users, _)] in forwarded.values())
    assert one.messages.first == 5 * PEOPLE  # what was forwarded is deleted
    assert str(learner.estimator.guarantee) == str(ApproxDP(4.0, 1e-4))


@pytest.mark.slow
def test_a_crash_of_anyone_at_any_moment(world: Callable[..., World]) -> None:
    """One crash at every second send, flush and commit: no batch twice, no batch as two sets, none lost."""
    moments = world(records=2 * PEOPLE).run().ticks
    again = whole = 0
    for moment in range(1, moments + 1, 2):
        one = world(records=2 * PEOPLE, crash_at=moment).run()
        assert one.crashes == 1
        learned, mixed = one.parties["learner"].counts.learned, one.parties["shuffler"]
        # Fewer messages than records where a device died after it had noted that it answers; others may be too late.
        assert learned + mixed.waiting + mixed.counts.refused == len(one.messages.items) <= 2 * PEOPLE
        assert learned in (PEOPLE, 2 * PEOPLE)
        assert mixed.counts.learned == learned
        whole += learned == 2 * PEOPLE
        batches = [numbers["batch"] for event, numbers in one.events if event == "learned"]
        assert len(batches) == len(set(batches))
        for times in one.forwarded().values():
            assert all(time == times[0] for time in times), "a batch was forwarded as two sets"
            again += len(times) - 1
        said = [json.loads(item.value or b"") for item in one.points.items]
        by_batch = defaultdict(set)
        for announcement in said:
            by_batch[tuple(announcement["batch"])].add(tuple(announcement["point"]))
        assert all(len(points) == 1 for points in by_batch.values()), "two points for one batch"
    assert again > 0, "no crash came between forwarding and the commit that follows"
    assert whole > 10  # those of the shuffler and the learner lose nothing


def test_fewer_people_after_a_while(world: Callable[..., World]) -> None:
    one = world(records=17, share=0.8).run()
    assert one.parties["learner"].counts.learned == 0
    one.now = 11.0
    one.run()
    learner = one.parties["learner"]
    assert learner.counts.learned == 17
    [spent] = learner.estimator.guarantee.budgets
    assert spent == one.agreed.params((0, 0, 0)).guarantee_for(17)
    assert 4 < spent.epsilon < one.agreed.weakest((0, 0, 0)).epsilon
    assert f"epsilon, delta) = ({spent.epsilon:.4f}"[:24] in learner.estimator.statement()


@pytest.mark.slow
def test_people_who_answer_after_a_crash_do_not_join_a_batch_that_was_decided_on(world: Callable[..., World]) -> None:
    """17 of 20 are enough after a while; three more answer while the shuffler is down, at each moment of forwarding."""
    cut_off = 0
    for moment in range(1, 100):
        one = world(records=17, share=0.8).run()
        one.now, one.crash_at = 11.0, one.ticks + moment
        one.step("shuffler")
        late = [ShuffleDevice(one.agreed).answer(one.points.items[-1].value or b"", {"a": 0.9}, 1.0) for _ in range(3)]
        for pair in late:
            one.messages.add(*pair)
        seen_before = len(one.shuffled.items)
        one.run()
        one.now = 30.0
        one.run()
        times = one.forwarded()[0, 0, 0]
        users = {read_part(item.value, one.agreed.digest).users for item in one.shuffled.items}
        assert all(time == times[0] for time in times)
        decided = one.crashes == 0 or moment > 1
        assert users == ({17} if decided else {20}), "parts of two sets were forwarded"
        assert one.parties["learner"].counts.learned == users.pop()
        cut_off += one.crashes and seen_before > 0
        if not one.crashes:
            break
    assert cut_off > 5


def test_too_few_people_are_never_forwarded(world: Callable[..., World]) -> None:
    one = world(records=15, share=0.8).run()
    one.now = 1e9
    one.run()
    assert (one.parties["shuffler"].waiting, one.shuffled.items) == (15, [])


def test_late_malformed_and_repeated_messages_are_counted(world: Callable[..., World]) -> None:
    one = world(records=PEOPLE)
    one.step("learner")
    digest, good = one.agreed.digest, one.agreed.params((0, 0, 0)).message_bytes
    key = message_key(digest, (0, 0, 0))
    half = one.agreed.accept(one.points.items[-1].value or b"")
    real = os.urandom(NONCE_BYTES) + half.messages({"a": 0.1, "b": 0.2}, 1.0).tobytes()
    bad: list[tuple[bytes | None, bytes | None]] = [
        *((key, value) for value in (None, b"", b"x", bytes(NONCE_BYTES + good - 1), bytes(NONCE_BYTES + good + 1))),
        (key, bytes(NONCE_BYTES) + b"\xff" * good),  # ones past its bits
        *(
            (k, real)
            for k in (None, b"", b"\xff", key + b"/0", key[:-1], b"0" + key, message_key("00" * 16, (0, 0, 0)))
        ),
        *((message_key(digest, place), real) for place in ((0, 0, 1), (9, 0, 0), (10**17, 0, 0))),
        (digest.encode() + b"/0/0/-1", real),
        (digest.encode() + b"/0/0/00", real),
        (digest.encode() + "/0/0/²".encode(), real),
    ]
    past = 8 * (good // 3) - half.params.g - half.params.b
    bad = [pair for pair in bad if past or pair[1] != bytes(NONCE_BYTES) + b"\xff" * good]
    for pair in bad:
        one.messages.add(*pair)
    one.messages.add(key, real)
    one.messages.add(key, real)  # once more, by whatever lies between
    one.run()
    assert one.parties["shuffler"].counts == Counts(PEOPLE, 1, len(bad) + 1)  # one of the crowd came too late
    one.shuffled.add(None, b"nonsense")
    one.messages.add(key, real)
    one.run()
    assert one.parties["shuffler"].counts == Counts(PEOPLE, 2, len(bad) + 1)
    assert one.parties["learner"].counts == Counts(PEOPLE, 0, 1)


def test_messages_that_are_gone_are_not_mixed_with_others(world: Callable[..., World]) -> None:
    """The topic lost a batch between the decision and its forwarding: later people make it up, all of them."""
    one = world(records=3 * PEOPLE)
    while one.stores["shuffler"].load() is None:
        one.crash_at = one.ticks + 2 if one.parties.get("shuffler") and one.parties["shuffler"].waiting else None
        for name in ("learner", "devices", "shuffler"):
            one.step(name)
    one.parties.pop("shuffler", None)
    assert one.stores["shuffler"].load().position["decided"] == PEOPLE
    assert one.shuffled.items == []
    one.messages.first = 3
    one.crash_at = None
    one.step("shuffler")
    assert ("gone", {"batch": "0/0/0", "answered": PEOPLE}) in one.events
    assert one.parties["shuffler"].waiting == 0


def test_a_new_shuffler_deletes_what_its_predecessor_could_not(world: Callable[..., World]) -> None:
    one = world(records=2 * PEOPLE + 3)
    one.step("shuffler")
    one.parties["shuffler"].messages.forgets = False
    one.run()
    assert one.messages.first == 0
    one.parties.pop("shuffler")
    one.step("shuffler")
    assert one.messages.first == 2 * PEOPLE


def test_a_store_or_a_topic_of_another_run(world: Callable[..., World]) -> None:
    one = world(records=2 * PEOPLE).run()
    empty = Kept(lambda: None)
    with pytest.raises(SourceError, match="knows nothing of it"):
        Mixer(one.agreed, Reader(one.messages), Writer(one.shuffled), empty)
    again = ShuffleLearner(one.agreed, model(), Reader(one.shuffled), Writer(one.points), empty)
    while again.step(0.0):  # a learner that lost its store comes to the same model from the same bits
        pass
    assert np.array_equal(again.estimator.theta, one.parties["learner"].estimator.theta)
    with pytest.raises(StoreMismatchError, match="minimum_share"):
        ShuffleLearner(Agreement(model(), 0.9), model(), Reader(one.shuffled), Writer(one.points), empty)
    shorter = Topic(lambda: None)
    shorter.items = [item for item in one.shuffled.items if b"0/0/1" in (item.key or b"")]
    late = ShuffleLearner(one.agreed, model(), Reader(shorter), Writer(one.points), Kept(lambda: None))
    with pytest.raises(SourceError, match="batch 0/0/1 was forwarded, but 0/0/0 comes next"):
        late.step(0.0)
    one.parties.clear()
    one.messages.items, one.messages.first = [], 0
    with pytest.raises(SourceError):
        one.build("shuffler")
    with pytest.raises(SourceError, match="another agreement"):
        Notes(str(one.folder / "notes"), Agreement(model(), 0.9))
    (one.folder / "notes").write_text("{")
    with pytest.raises(SourceError, match="something else"):
        Notes(str(one.folder / "notes"), one.agreed)
    with pytest.raises(SourceError, match="directory"):  # what cannot be read is not taken for none
        Notes(str(one.folder), one.agreed)


def test_two_holders_of_the_notes_do_not_let_every_record_answer_twice(world: Callable[..., World]) -> None:
    one = world(records=PEOPLE)
    while one.step("learner") or one.step("devices"):
        pass
    with pytest.raises(StoreBusyError, match="in use"):
        one.build("devices")
    answered = one.parties.pop("devices").notes.answered
    assert one.build("devices").notes.answered == answered == PEOPLE


def test_notes_have_one_lock_and_one_content_by_whatever_name(tmp_path: Path) -> None:
    """Before, a symbolic link was another lock, and writing by it left the file as it was: people answered again."""
    agreed, path, link = Agreement(model()), tmp_path / "notes", tmp_path / "link"
    link.symlink_to(path)
    notes = Notes(str(link), agreed)
    with pytest.raises(StoreBusyError, match="in use"):
        Notes(str(path), agreed)
    notes.answered = 7
    notes.write()
    notes._lock.release()
    assert Notes(str(path), agreed).answered == 7


def test_a_refused_announcement_makes_devices_wait(world: Callable[..., World]) -> None:
    one = world(records=PEOPLE)
    one.points.add(None, announced(budget="eps=99,delta=1e-4"))
    assert not any(one.step("devices") for _ in range(3))
    assert one.messages.items == []
    assert [event for event, _ in one.events] == ["refused"]
    assert one.run().parties["learner"].counts.learned == PEOPLE


def test_records_that_allow_less_decline(world: Callable[..., World]) -> None:
    one = world(records=0)
    crowd, notes = noted(one, DeviceSimulator, {"a": 0.0}, (None, 4.0, 3.9, 5.0) * 10, per_batch=7)
    while crowd.step(0.0):
        pass
    assert (notes.answered, notes.declined) == (len(one.messages.items), notes.position["index"] - 7)
    assert notes.answered == 7


def test_records_that_allow_no_absent_people_decline(world: Callable[..., World]) -> None:
    """With a share of .8 the others may spend more than the budget of the job."""
    one = world(records=0, share=0.8)
    weakest = one.agreed.weakest(one.agreed.first).epsilon
    assert weakest > 4.1
    crowd, notes = noted(one, DeviceSimulator, {"a": 0.0}, (None, 4.0, weakest * 0.999, weakest))
    while crowd.step(0.0):
        pass
    assert (notes.answered, notes.declined, len(one.messages.items)) == (2, 2, 2)


def test_nothing_of_a_message_is_kept_by_the_shuffler(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it stores at each commit is the same for other messages of as many people."""
    commit, stored, sent = Kept.commit, list[list[str]](), list[set[bytes | None]]()

    def noted(self: Kept, state: Any, position: Any, counts: Counts) -> None:
        commit(self, state, position, counts)
        if "decided" in position:
            stored[-1].append(self.text)

    monkeypatch.setattr(Kept, "commit", noted)
    for _ in range(2):
        stored.append([])
        one = world(records=3 * PEOPLE - 1).run()
        sent.append({item.value for item in one.messages.items})
    mixer = one.parties["shuffler"]
    assert mixer.waiting == PEOPLE - 1
    assert stored[0] == stored[1]
    assert len(stored[0]) >= 4  # a decision and its end for each of two batches
    assert not sent[0] & sent[1]
    with pytest.raises(TypeError, match="neither copied nor stored"):
        pickle.dumps(mixer)


@pytest.mark.parametrize("name", ["shuffler", "learner"])
def test_a_party_refuses_another_topic_of_the_same_name(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Reader, "id", "the first")
    one = world(records=2 * PEOPLE).run()
    assert one.build(name) is not None
    monkeypatch.setattr(Reader, "id", None)
    assert one.build(name) is not None, "these brokers give no ids"
    monkeypatch.setattr(Reader, "id", "the second")
    with pytest.raises(SourceError, match="deleted and created again"):
        one.build(name)
