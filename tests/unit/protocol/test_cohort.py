"""A cohort of the shuffle protocol: what devices refuse, absent people, and a crash of each party at every moment."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp import ApproxDP, L2Ball, Ledger, ShuffleClassifier
from streamdp.aggregation.shuffled_sum import Shuffled, Shuffler
from streamdp.cli.shuffle import agreement
from streamdp.config.job import make_config
from streamdp.errors import BudgetError, ConfigError, NotAvailableError, SchemaError, SourceError
from streamdp.learners.shuffle import ShuffleBatches
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.cohort import CohortDevice, CohortSimulator
from streamdp.protocol.devices import Notes
from streamdp.protocol.learner import ShuffleLearner
from streamdp.protocol.shuffle_wire import cut, message_key, read_announcement, read_key, write_announcement
from streamdp.serving.doubts import doubts
from streamdp.store.snapshot import Counts
from tests.support.memory import END, MemorySource
from tests.support.parties import Kept, Reader, World, Writer, noted
from tests.support.shuffle_model import PEOPLE

ROUNDS = 3
COHORT = {"cohort": {"people": PEOPLE, "rounds": ROUNDS}, "horizon": None, "batch_size": None}
RECORD = {"a": 0.3, "b": -0.2}


def model(**changes: Any) -> ShuffleClassifier:
    given = {"features": ["a", "b"], "budget": "eps=4,delta=1e-4", "domain": L2Ball(3.0), "cohort": COHORT["cohort"]}
    return ShuffleClassifier(**given | changes)


def announced(step: int = 0, point: tuple[float, ...] = (0.0, 0.0, 0.0), **changes: Any) -> bytes:
    """What a learner announces; for a round out of range, what one that is not honest may announce."""
    agreed = Agreement(model(**changes))
    text = write_announcement(agreed.announcement((0, 0, min(step, ROUNDS - 1)), np.array(point)))
    return text.replace(b'"batch": [0, 0, %d]' % min(step, ROUNDS - 1), b'"batch": [0, 0, %d]' % step)


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    def make(records: int = PEOPLE, **given: Any) -> World:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return World(folder, records, **COHORT | {"part_bytes": 2000} | given)

    return make


def check(one: World, people: int = PEOPLE) -> None:
    """Everybody answered with one message in each round, and each round was made once, from these messages."""
    learner, mixer = one.parties["learner"], one.parties["shuffler"]
    assert learner.estimator.finished
    assert (learner.counts, mixer.counts.learned) == (Counts(people, 0, 0), ROUNDS * people)
    sent, points = defaultdict(set), defaultdict(set)
    for item in one.messages.items:
        sent[read_key(item.key, one.agreed.digest)].add(item.value)
    assert {place: len(values) for place, values in sent.items()} == {(0, 0, t): people for t in range(ROUNDS)}
    forwarded = one.forwarded()
    assert list(forwarded) == [(0, 0, t) for t in range(ROUNDS)]
    for times in forwarded.values():
        assert all(time == times[0] for time in times), "a round was forwarded as two sets"
    for item in one.points.items:
        said = read_announcement(item.value or b"")
        points[said.batch].add(tuple(said.point))
    assert [len(found) for found in points.values()] == [1] * ROUNDS
    again = ShuffleLearner(one.agreed, one.model(), Reader(one.shuffled), Writer(one.points), Kept(lambda: None))
    while again.step(0.0):
        pass
    assert np.array_equal(again.estimator.theta, learner.estimator.theta), "a round was skipped or made twice"


def test_the_same_people_answer_in_every_round(world: Callable[..., World]) -> None:
    one = world()
    one.step("learner")
    learner = one.parties["learner"]
    while not learner.counts.learned:
        for name in ("devices", "shuffler", "learner"):
            one.step(name)
    assert doubts(learner.estimator, learner.counts)[0].startswith("1 of the cohort's 3 rounds are made")
    one.run()
    check(one)
    assert not any("rounds" in doubt for doubt in doubts(learner.estimator, learner.counts))
    assert str(learner.estimator.guarantee) == "eps=4,delta=0.0001"
    assert "all 3 rounds together in which the same 20 people answer" in learner.estimator.statement()
    for name in ("devices", "shuffler", "learner"):
        one.parties[name].run()  # each knows that it has ended
    assert not (one.folder / "notes.messages").exists()
    one.parties.clear()
    assert not any(one.step(name) for name in ("learner", "devices", "shuffler"))
    assert one.messages.first == ROUNDS * PEOPLE  # what was forwarded is deleted
    with pytest.raises(ConfigError, match="all rounds of the cohort are done"):
        learner.estimator.absorb(None)
    one.messages.add(message_key(one.agreed.digest, (0, 0, ROUNDS)), b"x" * 100)
    one.step("shuffler")
    assert one.parties["shuffler"].counts.dead_letters == 1
    late = next(cut(Shuffled(np.zeros((3, 1), np.uint8), 1), one.agreed.digest, (0, 0, ROUNDS), bytes(16)))
    one.shuffled.add(None, late)
    one.step("learner")
    assert one.parties["learner"].counts == Counts(PEOPLE, 0, 1)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.campaign)])
@pytest.mark.slow
def test_a_crash_of_anyone_at_any_moment(world: Callable[..., World], every: int) -> None:
    """One crash at each send, flush and commit, before and after: all rounds are made, with one message of each."""
    moments = world().run().ticks
    repeated = again = 0
    for moment in range(1, moments + 1, every):
        one = world(crash_at=moment).run()
        assert one.crashes == 1
        check(one)
        repeated += len(one.messages.items) > ROUNDS * PEOPLE
        again += any(len(times) > 1 for times in one.forwarded().values())
    assert repeated > 0, "no crash came while messages were sent"
    assert again > 0, "no crash came between forwarding and the commit that follows"


def test_a_crash_between_the_messages_and_the_notes(world: Callable[..., World], monkeypatch: Any) -> None:
    """Messages that never left are made anew; those whose note is durable are sent as they are."""
    write, crashes = Notes.write, []
    for before in (True, False):
        one = world()

        def torn(self: Notes, before: bool = before) -> None:
            if not before:
                write(self)
            if len(crashes) < 1 + (not before):
                crashes.append(self)
                self._lock.release()
                raise RuntimeError

        monkeypatch.setattr(Notes, "write", torn)
        one.step("learner")
        with pytest.raises(RuntimeError):
            one.step("devices")
        kept = (one.folder / "notes.messages").read_bytes().partition(b"\n")[2]
        assert one.messages.items == []
        one.parties.pop("devices")
        one.step("devices")
        assert (b"".join(item.value or b"" for item in one.messages.items) == kept) is (not before)
        check(one.run())


def test_absent_people_cost_the_others_more(world: Callable[..., World]) -> None:
    one = world(records=17, share=0.8).run()
    assert one.parties["learner"].counts.learned == 0
    for _ in range(ROUNDS):
        one.now += 11.0
        one.run()
    check(one, 17)
    [spent] = one.parties["learner"].estimator.guarantee.budgets
    assert spent == one.agreed.params((0, 0, 0)).guarantee_for(17)
    assert 4 < spent.epsilon < one.agreed.weakest((0, 0, 0)).epsilon


def test_the_smallest_round_decides_the_spend_and_the_first_one_counts_it() -> None:
    learner = model()
    params, spends = learner.randomizer.params, []
    for people in (PEOPLE - 1, PEOPLE - 4, PEOPLE):
        shuffler = Shuffler(params, people)
        shuffler.collect(learner.randomizer.messages_of(np.zeros((people, 2)), np.zeros(people)))
        learner.absorb(shuffler.forward())
        spends.append(learner.guarantee.budgets[0])
    assert spends == [params.guarantee_for(people) for people in (PEOPLE - 1, PEOPLE - 4, PEOPLE - 4)]
    assert learner.n_seen == PEOPLE
    # It is that of all rounds: one round of so few people alone has far less.
    alone = type(params)(params.budget, params.bound, PEOPLE, params.d, params.g, params.b, params.sensitivity)
    assert alone.guarantee_for(PEOPLE - 4).epsilon < 0.8 * spends[-1].epsilon


def make_round(learner: ShuffleClassifier) -> None:
    shuffler = Shuffler(learner.randomizer.params)
    shuffler.collect(learner.randomizer.messages_of(np.ones((PEOPLE, 2)), np.ones(PEOPLE)))
    learner.absorb(shuffler.forward())


def test_a_merge_asks_nobody_again() -> None:
    """Its people have answered in the rounds of the parts, whose noise is for these rounds alone."""
    parts = model(), model()
    for rounds, part in zip((ROUNDS, 1), parts, strict=True):
        for _ in range(rounds):
            make_round(part)
    both = parts[0].merged(parts[1])
    copy = model()
    copy.load_state_dict(both.state_dict())
    for one in (both, copy):
        assert one.finished
        np.testing.assert_allclose(one.theta, (parts[0].theta + parts[1].theta) / 2)
        with pytest.raises(ConfigError, match="all rounds of the cohort are done"):
            make_round(one)


def test_a_state_goes_on_at_its_round() -> None:
    learner = model()
    make_round(learner)
    copy = model()
    copy.load_state_dict(learner.state_dict())
    assert copy.batch == learner.batch == (0, 0, 1)
    assert np.array_equal(copy.randomizer.point, learner.randomizer.point)
    assert copy.guarantee == learner.guarantee
    for other in (model(cohort={"people": PEOPLE, "rounds": ROUNDS + 1}), model(cohort=None, method="ac-sa")):
        with pytest.raises(ConfigError):
            other.load_state_dict(learner.state_dict())
    state = learner.state_dict()
    with pytest.raises(ConfigError, match="out of range"):
        copy.load_state_dict(state | {"place": [0, 0, ROUNDS + 1]})


# -- what a device refuses -------------------------------------------------------------------------------------------


def test_a_device_answers_a_round_once() -> None:
    stored: list[Any] = []
    device = CohortDevice(Agreement(model()), note=stored.append)
    first = device.answer(announced(), RECORD, 1.0)
    elsewhere = announced(point=(1.0, 0.0, 0.0))  # another point for the same round
    assert device.answer(elsewhere, RECORD, 0.0) == first
    assert stored == [first]
    second = device.answer(announced(1), RECORD, 1.0)
    assert second[1] != first[1]
    with pytest.raises(NotAvailableError, match="later round"):
        device.answer(announced(), RECORD, 1.0)
    again = CohortDevice(Agreement(model()), last=stored[-1], note=stored.append)
    assert again.answer(announced(1), RECORD, 1.0) == second
    again.answer(announced(2), RECORD, 1.0)
    assert len(stored) == ROUNDS
    with pytest.raises(SchemaError, match="no such batch"):
        again.answer(announced(ROUNDS), RECORD, 1.0)
    assert len(stored) == ROUNDS


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (announced(cohort={"people": PEOPLE, "rounds": 4}), ConfigError, "another"),
        (announced(cohort={"people": PEOPLE - 1, "rounds": ROUNDS}), ConfigError, "another number of people"),
        (announced(budget="eps=5,delta=1e-4"), ConfigError, "another budget"),
        (announced(domain=L2Ball(4.0)), ConfigError, "another agreement"),
        (announced(point=(3.0, 0.1, 0.0)), ConfigError, "outside of the domain"),
        (announced(7), SchemaError, "no such batch"),
    ],
    ids=["rounds", "people", "budget", "domain", "point", "round"],
)
def test_a_device_refuses(text: bytes, error: type[Exception], said: str) -> None:
    stored: list[Any] = []
    device = CohortDevice(Agreement(model()), note=stored.append)
    with pytest.raises(error, match=said):
        device.answer(text, RECORD, 1.0)
    assert stored == []
    device.answer(announced(point=(3.0, 0.0, 0.0)), RECORD, 1.0)  # on the border


def test_a_device_whose_note_fails_has_one_message_for_the_round() -> None:
    """The note may have stored it before it raised, and another thread may have sent what it stored."""
    stored: list[Any] = []

    def lost(message: Any) -> None:
        stored.append(message)
        if len(stored) in (1, 2, 4):
            raise OSError("no answer")

    device = CohortDevice(Agreement(model()), note=lost)
    with pytest.raises(SchemaError):
        device.answer(announced(), {"a": float("nan")}, 1.0)
    assert stored == []
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            device.answer(announced(), RECORD, 1.0)
    message = device.answer(announced(point=(1.0, 0.0, 0.0)), RECORD, 1.0)
    assert stored == [message] * 3
    with pytest.raises(OSError, match="no answer"):
        device.answer(announced(1), RECORD, 1.0)
    with pytest.raises(NotAvailableError, match="later round"):
        device.answer(announced(), RECORD, 1.0)
    later = device.answer(announced(2), RECORD, 1.0)
    assert stored[4:] == [later]
    assert len({value for _, value in stored}) == 3


def test_devices_of_another_agreement() -> None:
    with pytest.raises(ConfigError, match="no cohort"):
        CohortDevice(Agreement(model(cohort=None)), note=print)
    last = CohortDevice(Agreement(model()), note=id).answer(announced(), RECORD, 1.0)
    with pytest.raises(SchemaError, match="another agreement"):
        CohortDevice(Agreement(model(budget="eps=5,delta=1e-4")), last=last, note=id)


def test_a_later_version_with_another_plan_is_another_agreement(monkeypatch: Any) -> None:
    planned = {"people": PEOPLE}
    learner = model(cohort=planned)
    before = Agreement(learner)
    while not learner.finished:
        make_round(learner)
    monkeypatch.setattr("streamdp.learners.shuffle._PLANS", 2)
    later = model(cohort=planned)
    after = Agreement(later)
    assert before.rounds < after.rounds
    assert before.digest != after.digest
    with pytest.raises(ConfigError, match="rounds"):  # it would ask for more, and the spend would not say so
        later.load_state_dict(learner.state_dict())


def test_notes_of_these_people(world: Callable[..., World]) -> None:
    one = world().run()
    one.parties.clear()
    with pytest.raises(SourceError, match="another agreement"):
        Notes(str(one.folder / "notes"), Agreement(model()))
    records = one.items[:-1]
    for people, error, said in ((19, SourceError, "others"), (21, ConfigError, "20 people"), (0, ConfigError, "of 0")):
        notes = Notes(str(one.folder / "notes"), one.agreed)
        source = MemorySource([*(records * 2)[:people], END], ("a", "b"))
        with pytest.raises(error, match=said):
            CohortSimulator(one.agreed, source, Reader(one.points), Writer(one.messages), notes)
        notes._lock.release()


def test_an_empty_file_is_no_cohort(world: Callable[..., World]) -> None:
    one = world()
    notes = Notes(str(one.folder / "other"), one.agreed)
    source = MemorySource([END], ("a", "b"))
    source.poll(1, 0.0)
    assert source.finished  # at once, as a file with a header only
    with pytest.raises(ConfigError, match="of 0"):
        CohortSimulator(one.agreed, source, Reader(one.points), Writer(one.messages), notes)


def test_a_full_disk_sends_no_message(world: Callable[..., World], monkeypatch: Any) -> None:
    def full(path: str, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    one = world()
    one.step("learner")
    with monkeypatch.context() as patched:
        patched.setattr("streamdp.protocol.devices.write_durably", full)
        with pytest.raises(SourceError, match=r"notes\.messages: no space"):
            one.step("devices")
    assert one.messages.items == []
    check(one.run())


def test_records_that_allow_less_decline_all_rounds(world: Callable[..., World]) -> None:
    one = world()
    crowd, notes = noted(one, CohortSimulator, RECORD, (None, 4.0, 3.9, 5.0))
    assert crowd.step(0.0)
    assert (notes.answered, notes.declined, len(one.messages.items)) == (3, 1, 3)
    assert not crowd.step(0.0)
    one.points.add(None, announced(1, budget="eps=99,delta=1e-4"))
    assert not crowd.step(0.0)
    assert len(one.messages.items) == 3


def test_a_round_whose_messages_are_gone_is_not_collected_again(world: Callable[..., World]) -> None:
    """Others of the same people would be another set of the same round."""
    one = world()
    one.step("learner")
    one.step("devices")
    one.step("shuffler")  # 17 of 20
    one.crash_at = one.ticks + 2  # after the decision
    one.step("shuffler")
    assert one.stores["shuffler"].load().position["decided"] == PEOPLE
    assert one.shuffled.items == []
    one.messages.first = 3
    with pytest.raises(SourceError, match=r"round 0/0/0.* gone"):
        one.build("shuffler")


def test_messages_that_were_noted_and_are_gone(world: Callable[..., World]) -> None:
    one = world()
    one.step("learner")
    one.crash_at = one.ticks + 1
    one.step("devices")
    noted = one.folder / "notes.messages"
    other = noted.read_bytes().replace(b"/0/0/0", b"/0/0/1", 1)  # made for a round whose note was not written
    for damage in (lambda: noted.write_bytes(other), noted.unlink):
        damage()
        with pytest.raises(SourceError, match="expected the messages of this round"):
            one.step("devices")
    assert len(one.messages.items) < PEOPLE


# -- the estimator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cohort": 5}, "expected people"),
        ({"cohort": {"rounds": 3}}, "expected people"),
        ({"cohort": {"people": 5, "more": 1}}, "expected people"),
        ({"cohort": {"people": 0}}, r"cohort\.people: expected a whole number"),
        ({"cohort": {"people": 5, "rounds": 0}}, r"cohort\.rounds: expected a whole number"),
        ({"method": "newton"}, "ac-sa"),
        ({"horizon": 5}, "leave out"),
        ({"batch_size": 5}, "leave out"),
        ({"strong_convexity": 0.1}, "leave out"),
        ({"features": None}, "declared features"),
    ],
)
def test_what_a_cohort_does_not_have(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        model(**changes)


def test_models_without_features_have_no_rounds() -> None:
    assert not ShuffleClassifier().finished


def test_whole_numbers_of_numpy_make_the_same_agreement() -> None:
    counts = {"people": np.int64(PEOPLE), "rounds": np.int64(ROUNDS)}
    assert Agreement(model(cohort=counts)).digest == Agreement(model()).digest


def test_a_cohort_is_for_devices() -> None:
    settings = {
        "job": "x",
        "source": {"type": "csv", "path": "x.csv"},
        "schema": {"features": {"a": [0, 1]}, "target": {"column": "y", "classes": ["no", "yes"]}},
        "model": {"estimator": "ShuffleClassifier", "cohort": {"people": 5}},
    }
    with pytest.raises(ConfigError, match="type: shuffle"):
        make_config(settings)
    topics = {name: name for name in ("points", "messages", "shuffled")}
    config = make_config(settings | {"source": {"type": "shuffle", **topics}})
    assert (
        config.fingerprint()
        != make_config(
            settings | {"source": {"type": "shuffle", **topics}, "model": {"estimator": "ShuffleClassifier"}}
        ).fingerprint()
    )
    assert agreement(config).rounds == config.build_estimator().phase.steps  # type: ignore[attr-defined]


def test_a_cohort_learns_no_raw_records() -> None:
    learner, X, y = model(), np.zeros((2, 2)), np.zeros(2)
    ledger = Ledger(ApproxDP(8, 1e-3))
    capped = model(ledger=ledger)
    for learn in (
        lambda: learner.learn_one(RECORD, True),
        lambda: learner.learn_many(X, y.astype(bool)),
        lambda: learner.learn_encoded(X, y),
        lambda: capped.learn_one(RECORD, True, subject="ann"),
        lambda: capped.learn_encoded(X, y, subjects=["ann", "bob"]),
    ):
        with pytest.raises(ConfigError, match="by `absorb`"):
            learn()
    assert learner.n_seen == learner.batch[2] == 0
    assert learner.guarantee.budgets == capped.guarantee.budgets == ()
    assert ledger.spent("ann").records == 0


def test_rounds_that_take_too_many_bits_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = ShuffleBatches.cohort_sum

    def limited(self: ShuffleBatches, users: int, rounds: int) -> Any:
        if rounds > most:
            raise BudgetError("too many bits")
        return unlimited(self, users, rounds)

    monkeypatch.setattr(ShuffleBatches, "cohort_sum", limited)
    most = 10
    assert 5 < model(cohort={"people": 2000}).phase.steps <= most
    most = 0
    with pytest.raises(BudgetError):
        model(cohort={"people": 2000})
