"""What the store remembers of answers: until they are old, as digests, in the transaction of the commit."""

from pathlib import Path

import pytest

from streamdp.data.records import WHOLE
from streamdp.errors import ConflictError
from streamdp.store.answers import PRUNE_S, Answers
from streamdp.store.snapshot import Counts, Part
from streamdp.store.store import Store
from tests.support.clock import FakeClock


def commit(store: Store, answers: Answers, n: int, *names: bytes) -> None:
    found = {answers.digest(b"learn", name): (answers.digest(b"body", name), {"n": n}) for name in names}
    store.commit_parts(
        {WHOLE: Part({"theta": [n]}, {"n": n}, Counts(n))}, lambda *given: answers.write(given[0], found)
    )


def test_answers_are_remembered_until_they_are_old(place: str) -> None:
    clock = FakeClock()
    clock.sleep(1e9)
    with Store(place, "late", "1") as store:
        answers = store.answers(1)
        answers.clock = clock
        keys = [answers.digest(b"learn", name) for name in (b"a", b"b", b"c")]
        commit(store, answers, 1, b"a")
        clock.sleep(1800)
        commit(store, answers, 2, *(b"%d" % i for i in range(1200)), b"b")
        assert answers.recall(keys).keys() == set(keys[:2])
        many = [answers.digest(b"learn", b"%d" % i) for i in range(1200)]
        assert len(answers.recall(many)) == 1200
        clock.sleep(1800 + PRUNE_S)
        assert answers.recall(keys).keys() == {keys[1]}
        commit(store, answers, 3, b"a")  # the same key again
        assert answers.recall(keys)[keys[0]][1] == {"n": 3}
    with Store(place, "late", "1") as store:
        answers = store.answers(1)
        answers.clock = clock
        digest, answer = answers.recall(keys)[keys[1]]
        assert (digest, answer) == (answers.digest(b"body", b"b"), {"n": 2})


def test_a_commit_that_fails_remembers_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db", "late", "1") as store:
        answers = store.answers(1)
        key = answers.digest(b"learn", b"a")

        def fails(connection: object, version: int) -> None:
            answers.write(connection, {key: (key, 1)})
            raise RuntimeError

        with pytest.raises(RuntimeError):
            store.commit_parts({WHOLE: Part({"theta": [1]}, {}, Counts(1))}, fails)
        assert not answers.recall([key])
        assert store.load() is None


def test_another_key_gives_other_digests(tmp_path: Path) -> None:
    digests = set()
    for name in ("a.db", "b.db"):
        with Store(tmp_path / name, "late", "1") as store:
            answers = store.answers(1)
            digests |= {answers.digest(kind, b"x") for kind in (b"learn", b"body")}
    assert len(digests) == 4


def test_a_commit_with_a_known_key_is_refused_until_the_key_is_old(place: str) -> None:
    clock = FakeClock()
    clock.sleep(1e9)
    with Store(place, "late", "1") as store:
        answers = store.answers(1)
        answers.clock = clock
        commit(store, answers, 1, b"a", b"b")
        with pytest.raises(ConflictError):
            commit(store, answers, 2, b"c", b"b")
        snapshot = store.load()
        assert snapshot.counts == Counts(1)
        assert answers.recall([answers.digest(b"learn", b"c")]) == {}
        clock.sleep(3600)
        answers.pruned_at = clock()  # the old rows are still there
        commit(store, answers, 2, b"c", b"b")
        assert answers.recall([answers.digest(b"learn", b"b")])[answers.digest(b"learn", b"b")][1] == {"n": 2}
