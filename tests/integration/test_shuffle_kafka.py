"""`streamdp shuffle` as its three parties run it, over a real broker: what is learned, kills, and what topics hold."""

import contextlib
import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, TopicAuthorizationFailedError

from connectors import topiclog
from connectors.kafkasink import TopicWriter
from connectors.topiclog import TopicLog
from servers.broker import create_topic
from streamdp.cli.shuffle import agreement
from streamdp.config.file import FileSourceConfig
from streamdp.config.job import load_config
from streamdp.errors import SourceError
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.shuffle_wire import NONCE_BYTES, Place, message_key, read_announcement, read_key
from streamdp.serving.publish import committed
from streamdp.store.store import Store
from studies.cohort import learn_cohort
from tests.support.commands import Command, Quick
from tests.support.shuffle_model import forwarded
from tests.support.topics import Message, delete_and_create, send
from tests.support.waiting import wait_until

SECRET = "4711.25"
RECORDS = 3000

JOB = """job: shy
source:
  type: shuffle
  points: NAME-points
  messages: NAME-messages
  shuffled: NAME-shuffled
schema:
  features: {delay: [-30, 60], origin: [EWR, JFK]}
  target: {column: late, classes: ["False", "True"]}
  subject: tail
model: {estimator: ShuffleClassifier, budget: "eps=4,delta=1e-5", batch_size: BATCH}
store: shy.db
publish: model.json
holdout: data.csv
"""


def write_data(folder: Path, n: int, bad: int = 0) -> None:
    rng = np.random.default_rng(1)
    lines = ["delay,origin,late,tail"]
    for i in range(n):
        delay = rng.uniform(-30, 60)
        lines.append(f"{delay:.2f},{('EWR', 'JFK')[i % 2]},{delay + rng.normal(0, 8) > 15},tail-{i}")
    lines += [f"{SECRET},XXX,False,tail-bad"] * bad
    (folder / "data.csv").write_text("\n".join(lines) + "\n")


def stop(command: Command) -> int:
    command.process.terminate()
    return command.end()


class Parties:
    """A job in a folder, with topics of its own."""

    def __init__(self, folder: Path, bootstrap: str, batch: int, text: str = JOB) -> None:
        self.folder, self.bootstrap = folder, bootstrap
        self.name = f"{folder.name}-{time.time_ns()}"
        self.job = folder / "job.yaml"
        self.job.write_text(text.replace("NAME", self.name).replace("BATCH", str(batch)))
        self.agreed: Agreement = agreement(load_config(str(self.job)))

    def topic(self, which: str) -> str:
        return f"{self.name}-{which}"

    def start(self, command: str, *arguments: str) -> Command:
        given = (command, "job.yaml", *(("data.csv",) if command == "randomize" else ()), *arguments)
        return Command(self.folder, self.bootstrap, "shuffle", *given)

    def read(self, which: str) -> list[Any]:
        with contextlib.closing(TopicLog(self.topic(which), self.bootstrap)) as log:
            at, end, found = log.seek(0), log.end(), []
            while at < end:
                for entry in log.poll(1.0):
                    found.append(entry)
                    at = entry.offset + 1
        return found

    def send(self, which: str, *pairs: tuple[bytes | None, bytes | None]) -> None:
        writer = TopicWriter(self.topic(which), self.bootstrap)
        for pair in pairs:
            writer.send(*pair)
        writer.flush()
        writer.close()

    def forwarded(self) -> dict[Place, list[tuple[int, list[int]]]]:
        return forwarded((entry.value for entry in self.read("shuffled")), self.agreed)

    def snapshot(self, store: str) -> Any:
        return Store.snapshot(self.folder / store)


@pytest.fixture
def make(tmp_path: Path, broker: Any) -> Callable[..., Parties]:
    def made(batch: int = 100, text: str = JOB) -> Parties:
        parties = Parties(tmp_path, broker.bootstrap, batch, text)
        with parties.start("topics") as command:
            assert command.end() == 0, command.errors
        return parties

    return made


def test_three_processes_learn_a_model(make: Callable[..., Parties]) -> None:
    """1,500 people fill 15 batches; 30 wait for a batch that is not full (`waiting`: tests/unit/protocol)."""
    parties = make()
    write_data(parties.folder, 1530, bad=3)
    with parties.start("learn") as learner, parties.start("randomize") as devices:
        held: list[Any] = []  # what a broker has meanwhile: the shuffler deletes what it has forwarded
        devices.until(lambda: held.extend(parties.read("messages")) or held)
        with parties.start("mix") as mixer:
            codes = [devices.end()]
            learner.until(lambda: (learner.of("learned") or [{}])[-1].get("learned") == 1500)
            codes += [stop(mixer), stop(learner)]
    assert codes == [0, 0, 0], (devices.errors, mixer.errors, learner.errors)
    assert devices.events[-1] == {"event": "end", "reason": "done", "answered": 1530, "declined": 0, "dead_letters": 3}
    assert mixer.events[-1].pop("waiting") <= 30
    assert mixer.events[-1] == {"event": "end", "reason": "stopped", "forwarded": 1500, "late": 0, "dead_letters": 0}
    assert learner.events[-1] == {"event": "end", "reason": "stopped", "learned": 1500}
    assert learner.of("measured")[-1]["holdout"]["accuracy"] > 0.75  # the constant has 0.5
    forwarded = parties.forwarded()
    assert [len(times) for times in forwarded.values()] == [1] * 15
    assert sum(users for [(users, _)] in forwarded.values()) == 1500
    assert str(committed(str(parties.folder / "shy.db")).estimator.guarantee) == "eps=4,delta=1e-05"
    # Nothing says whose a message is: the batch, 16 random bytes and the bits; one time for all of a batch.
    params = parties.agreed.params((0, 0, 0))
    shown = {tuple(read_announcement(e.value).batch): e.timestamp for e in parties.read("points")}
    for entry in held:
        place = read_key(entry.key, parties.agreed.digest)
        assert len(entry.value) == NONCE_BYTES + params.message_bytes
        assert entry.headers in ([], ())
        assert b"tail" not in entry.key + entry.value
        assert entry.timestamp <= shown.get(place, time.time() * 1000)
    by_batch = defaultdict(set)
    for entry in held:
        by_batch[entry.key].add(entry.timestamp)
    assert held
    assert all(len(times) == 1 for times in by_batch.values())
    assert len({entry.value[:NONCE_BYTES] for entry in held}) == len(held)
    left = parties.read("messages")
    assert len(left) == 30  # what was forwarded is gone from the broker
    stored = b"".join(file.read_bytes() for file in parties.folder.glob("*.db*"))
    for entry in left:
        assert entry.value[NONCE_BYTES:] not in stored
        assert entry.value[:NONCE_BYTES] not in stored
    said = json.dumps([c.events for c in (devices, mixer, learner)]) + "".join(mixer.errors + learner.errors)
    for text in (SECRET, "tail-", "XXX"):
        assert text not in said
        assert text.encode() not in stored


@pytest.mark.campaign
def test_kills_at_random_moments(make: Callable[..., Parties]) -> None:
    """Learner and shuffler are killed again and again: no batch is absorbed twice, or forwarded as two sets."""
    parties = make(batch=100)
    write_data(parties.folder, RECORDS)
    rng = np.random.default_rng()
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(parties.start(name)) for name in ("learn", "mix")}
        devices = stack.enter_context(parties.start("randomize"))
        kills, learned = 0, 0
        for victim in ("mix", "learn") * 5:
            running[victim].until(lambda: running[victim].events or devices.process.poll() is not None)  # noqa: B023
            time.sleep(rng.uniform(0.0, 0.3))
            running[victim].process.send_signal(signal.SIGKILL)
            running[victim].end()
            kills += 1
            running[victim] = stack.enter_context(parties.start(victim))
        devices.process.wait(60)
        running["learn"].until(lambda: (parties.snapshot("shy.db") or Nothing).counts.learned == RECORDS)
        for command in running.values():
            assert stop(command) == 0, command.errors
        learned = parties.snapshot("shy.db").counts.learned
    assert (kills, learned) == (10, RECORDS)
    assert parties.snapshot("shy-shuffler.db").counts.learned == RECORDS
    forwarded = parties.forwarded()
    assert len(forwarded) == RECORDS // 100
    for times in forwarded.values():
        assert all(time == times[0] for time in times)
        assert times[0][0] == 100
    points = defaultdict(set)
    for entry in parties.read("points"):
        said = read_announcement(entry.value)
        points[said.batch].add(tuple(said.point))
    assert all(len(found) == 1 for found in points.values())


class Nothing:
    class counts:
        learned = 0


PEOPLE, ROUNDS = 200, 6
PARTIES = "learn", "mix", "randomize"
COHORT = JOB.replace("batch_size: BATCH", f"cohort: {{people: {PEOPLE}, rounds: {ROUNDS}}}")


def coefficients(folder: Path) -> np.ndarray:
    return np.array(committed(str(folder / "shy.db")).estimator.theta)


def in_one_process(folder: Path, draws: int) -> np.ndarray:
    """theta (draws, d) of the same cohort in one process, with fresh noise in each draw."""
    plain = folder / "plain.yaml"
    text = JOB.replace("batch_size: BATCH", "method: ac-sa").replace("NAME", "plain")
    plain.write_text(text)
    config = load_config(str(plain))
    source = FileSourceConfig(type="csv", path=str(folder / "data.csv")).build(config.build_schema())
    batch = source.poll(PEOPLE, 1.0)
    found = []
    for _ in range(draws):
        learner: Any = config.build_estimator()
        learn_cohort(learner, batch.X, batch.y, np.random.default_rng(), rounds=ROUNDS)
        found.append(learner.theta)
    return np.array(found)


def start_cohort(parties: Parties, stack: contextlib.ExitStack, *names: str) -> list[Command]:
    return [stack.enter_context(parties.start(name)) for name in names or PARTIES]


def check_cohort(parties: Parties, rounds: int = ROUNDS) -> None:
    """Each round was made once, from one message of each person, at one point; and a learner finds the same model."""
    forwarded, points = parties.forwarded(), defaultdict(set)
    assert list(forwarded) == [(0, 0, t) for t in range(rounds)]
    for times in forwarded.values():
        assert all(time == times[0] for time in times)
        assert times[0][0] == PEOPLE
    for entry in parties.read("points"):
        said = read_announcement(entry.value)
        points[said.batch].add(tuple(said.point))
    assert len(points) == rounds
    assert all(len(found) == 1 for found in points.values())
    mixed, learned = parties.snapshot("shy-shuffler.db"), parties.snapshot("shy.db")
    assert (mixed.counts.learned, learned.counts.learned) == (rounds * PEOPLE, PEOPLE)
    (parties.folder / "again").mkdir()
    (parties.folder / "again" / "job.yaml").write_text(parties.job.read_text().replace("data.csv", "../data.csv"))
    with Command(parties.folder / "again", parties.bootstrap, "shuffle", "learn", "job.yaml") as again:
        assert again.end() == 0, again.errors
    assert np.array_equal(coefficients(parties.folder / "again"), coefficients(parties.folder))


@pytest.mark.campaign
def test_a_cohort_of_three_processes(make: Callable[..., Parties], quick: Quick) -> None:
    """All processes end by themselves after the last round, at the model of one process but for the noise."""
    parties = make(text=COHORT)
    write_data(parties.folder, PEOPLE, bad=2)
    with contextlib.ExitStack() as stack:
        learner, mixer, devices = start_cohort(parties, stack)
        assert [command.end() for command in (devices, mixer, learner)] == [0, 0, 0], (mixer.errors, learner.errors)
    assert devices.events[-1] == {
        "event": "end",
        "reason": "done",
        "answered": PEOPLE,
        "declined": 0,
        "dead_letters": 2,
    }
    assert mixer.events[-1]["forwarded"] == ROUNDS * PEOPLE
    assert learner.events[-1] == {"event": "end", "reason": "done", "learned": PEOPLE}
    assert [event["batch"] for event in learner.of("learned")] == [f"0/0/{t}" for t in range(ROUNDS)]
    assert {event["guarantee"] for event in learner.of("learned")} == {"eps=4,delta=1e-05"}
    check_cohort(parties)
    alone = in_one_process(parties.folder, 200)
    away = (coefficients(parties.folder) - alone.mean(axis=0)) / alone.std(axis=0)
    assert np.abs(away).max() < 6  # false alarms: 1e-8 for each of three coordinates
    assert f"all {ROUNDS} rounds together in which the same {PEOPLE} people answer" in quick.output(
        "statement", "shy.db", "--full"
    )
    assert parties.read("messages") == []
    error = quick.error(
        2, "shuffle", "randomize", "job.yaml", "data.csv", "--per-batch", "5", bootstrap=parties.bootstrap
    )
    assert "in every round" in error
    # Nobody answers again, neither in this cohort nor in another one.
    code, out, err = quick("shuffle", "randomize", "job.yaml", "data.csv", bootstrap=parties.bootstrap)
    assert (code, json.loads(out.splitlines()[-1])["reason"]) == (0, "done"), err
    parties.job.write_text(parties.job.read_text().replace(f"rounds: {ROUNDS}", f"rounds: {ROUNDS + 1}"))
    err = quick.error(3, "shuffle", "randomize", "job.yaml", "data.csv", bootstrap=parties.bootstrap)
    assert "under another agreement" in err
    assert parties.read("messages") == []


def kill(parties: Parties, victims: Sequence[str], stack: contextlib.ExitStack, rng: np.random.Generator) -> int:
    """Kill parties at random moments and start them again, until the cohort has ended; returns how many were killed."""
    running = dict(zip(PARTIES, start_cohort(parties, stack), strict=True))
    killed = 0
    for victim in victims:
        command = running[victim]
        command.until(lambda: command.events or command.process.poll() is not None)  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.2))
        if command.process.poll() is None:
            command.process.send_signal(signal.SIGKILL)
            killed += 1
        command.end()
        [running[victim]] = start_cohort(parties, stack, victim)
    assert [running[name].end() for name in ("randomize", "mix", "learn")] == [0, 0, 0], running["mix"].errors
    return killed


@pytest.mark.campaign
def test_kills_of_a_cohort_at_random_moments(make: Callable[..., Parties]) -> None:
    """30 rounds, and 12 kills: no round twice with fresh noise, none skipped."""
    parties = make(text=COHORT.replace(f"rounds: {ROUNDS}", "rounds: 30"))
    write_data(parties.folder, PEOPLE)
    with contextlib.ExitStack() as stack:
        assert kill(parties, ("randomize", "mix", "learn") * 4, stack, np.random.default_rng()) > 3
    check_cohort(parties, 30)


@pytest.mark.campaign
def test_a_share_of_the_people_after_a_while(make: Callable[..., Parties], quick: Quick) -> None:
    fewer = JOB.replace("schema:\n", "  minimum_share: 0.8\n  wait_seconds: 0.5\nschema:\n", 1)
    parties = make(text=fewer)
    write_data(parties.folder, 85)
    key = message_key(parties.agreed.digest, (0, 0, 0))
    junk: list[Any] = [
        (None, b"x"),
        (b"\xff", b"x"),
        (key, b"short"),
        (message_key(parties.agreed.digest, (0, 0, 5)), b""),
    ]
    parties.send("messages", *junk)
    with parties.start("learn") as learner, parties.start("mix") as mixer, parties.start("randomize") as devices:
        learner.until(lambda: learner.of("learned"))
        codes = [devices.end(), stop(mixer), stop(learner)]
    assert codes == [0, 0, 0], (devices.errors, mixer.errors, learner.errors)
    assert mixer.events[-1]["forwarded"] == 85
    assert mixer.events[-1]["dead_letters"] == len(junk)
    spent = parties.agreed.params((0, 0, 0)).guarantee_for(85)
    assert learner.of("learned")[0]["guarantee"] == f"{spent}"
    assert f"(epsilon, delta) = ({spent.epsilon:.3f}"[:24] in quick.output("statement", "shy.db")
    # who has answered does not answer again, and a late message and one that is no batch are counted
    parties.send("messages", (key, b"x"))
    parties.send("shuffled", (None, b"nonsense"))
    ends = []
    for command in (["mix", "job.yaml"], ["learn", "job.yaml"], ["randomize", "job.yaml", "data.csv"]):
        idle = ["--idle-seconds", "0.5"] * (command[0] != "randomize")
        code, out, err = quick("shuffle", *command, *idle, bootstrap=parties.bootstrap)
        assert code == 0, err
        ends.append(json.loads(out.splitlines()[-1]))
    mixed, learned, answered = ends
    assert (mixed["forwarded"], mixed["late"], mixed["dead_letters"]) == (85, 1, len(junk))
    assert (learned["reason"], learned["learned"]) == ("done", 85)
    assert answered["answered"] == 85
    assert len(parties.read("messages")) == 1
    code, _, err = quick("status", "shy-shuffler.db")
    assert (code, "no model" in err) == (2, True)
    with Store(parties.folder / "shy-shuffler.db", "shy", parties.agreed.digest):
        code, _, err = quick("shuffle", "mix", "job.yaml", bootstrap=parties.bootstrap)
    assert (code, "is in use" in err) == (4, True)  # one shuffler at a time
    # a learner that would have the people spend more is refused by their devices
    said = json.loads(parties.read("points")[-1].value)
    said["sum"]["budget"] = "eps=50,delta=1e-5"
    parties.send("points", (b"k", json.dumps(said).encode()))
    with parties.start("randomize", "--notes", "others") as devices:
        devices.until(lambda: devices.of("refused"))
        assert stop(devices) == 0
        assert not devices.of("answered")
    assert "another budget" in devices.of("refused")[0]["reason"]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("ShuffleClassifier", "PanPrivateClassifier", 11, "needs a Shuffle* estimator"),
        ("store: shy.db\n", "store: shy.db\ncap: eps=9,delta=1e-4\n", 13, "cannot keep a cap"),
        ("  messages: NAME-messages\n", "  messages: NAME-points\n", 5, "three different topics"),
        ("  messages: NAME-messages\n", "", 2, "messages: missing"),
        ("schema:\n", "  minimum_share: 0.8\nschema:\n", None, "go together"),
        ("schema:\n", "  minimum_share: 0\nschema:\n", 7, "greater than 0"),
        ("schema:\n", "  wait_seconds: 3\nschema:\n", 7, "go together"),
        ("schema:\n", "  shuffler_store: shy.db\nschema:\n", 7, "a file of its own"),
        ("schema:\n", "  options: {sasl_plain_password: hidden}\nschema:\n", 7, "a secret must be"),
        ("  type: shuffle\n", "  type: kafka\n", None, "source"),
        ("batch_size: BATCH", "cohort: {rounds: 3}", 11, "expected people"),
        ("batch_size: BATCH", "cohort: {people: many}", 11, "cohort"),
    ],
)
def test_mistakes_in_a_job(quick: Quick, tmp_path: Path, old: str, new: str, line: int | None, said: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace(old, new, 1).replace("BATCH", "100"))
    code, out, err = quick("shuffle", "mix", "job.yaml", bootstrap="127.0.0.1:9")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert said in err
    assert "hidden" not in err
    assert line is None or f"line {line}: " in err


def test_mistakes_of_the_commands(quick: Quick, tmp_path: Path, broker: Any) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("BATCH", "100").replace("NAME", "there-is-no"))
    write_data(tmp_path, 5)
    assert "`streamdp shuffle`" in quick.error(2, "run", "job.yaml", bootstrap=broker.bootstrap)
    assert "STREAMDP_KAFKA" in quick.error(2, "shuffle", "mix", "job.yaml")
    for command in (["mix", "job.yaml"], ["learn", "job.yaml"], ["randomize", "job.yaml", "data.csv"]):
        code, _, err = quick("shuffle", *command, bootstrap=broker.bootstrap)
        assert (code, err.count("\n")) == (3, 1), err
        assert "there is no topic 'there-is-no-" in err
        assert not [*tmp_path.glob("*.db*")]
    code, _, err = quick("shuffle", "randomize", "job.yaml", "none.csv", bootstrap=broker.bootstrap)
    assert (code, err.count("\n")) == (3, 1), err
    err = quick.error(2, "shuffle", "randomize", "job.yaml", "-", bootstrap=broker.bootstrap)
    create_topic(broker.bootstrap, two := f"two-{time.time_ns()}", 2)
    (tmp_path / "job.yaml").write_text(JOB.replace("BATCH", "100").replace("NAME-messages", two))
    assert "2 partitions; it must have one" in quick.error(3, "shuffle", "mix", "job.yaml", bootstrap=broker.bootstrap)


def numbers(count: int) -> list[Message]:
    return [(None, str(i).encode()) for i in range(count)]


def read(log: TopicLog) -> list[bytes]:
    """The next messages."""
    found: list[Any] = []
    wait_until(lambda: found.extend(log.poll(0.5)) or found)
    return [entry.value for entry in found]


def test_a_log_goes_on_where_messages_were_deleted(broker: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    send(broker.bootstrap, topic, numbers(10))
    with contextlib.closing(TopicLog(topic, broker.bootstrap)) as log:
        assert log.seek(2) == 2
        log.forget(5)
        assert read(log) == [b"5", b"6", b"7", b"8", b"9"]
        assert (log.seek(0), log.end(), log.kept) == (5, 10, None)


def test_a_deletion_that_fails_is_made_up_for_unless_the_right_is_missing(
    broker: Any, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until now, one fault of the network stopped all deletions, and was called a missing right."""
    topic = make_topic()
    send(broker.bootstrap, topic, numbers(10))
    real = topiclog.connect_admin

    def failing(error: KafkaError) -> Callable[..., Any]:
        def connect(*_: Any) -> Any:
            raise error

        return connect

    with contextlib.closing(TopicLog(topic, broker.bootstrap)) as log:
        for error in (KafkaTimeoutError(), KafkaConnectionError()):
            monkeypatch.setattr(topiclog, "connect_admin", failing(error))
            log.forget(3)
            assert type(error).__name__ in log.kept
            assert log.seek(0) == 0
        monkeypatch.setattr(topiclog, "connect_admin", real)
        log.forget(5)
        assert (log.seek(0), log.kept) == (5, None)
    with contextlib.closing(TopicLog(topic, broker.bootstrap)) as log:
        monkeypatch.setattr(topiclog, "connect_admin", failing(TopicAuthorizationFailedError()))
        log.forget(7)
        assert "may not delete" in log.kept
        monkeypatch.setattr(topiclog, "connect_admin", real)
        log.forget(8)
        assert log.seek(0) == 5


@pytest.mark.campaign
@pytest.mark.parametrize(("command", "which"), [("mix", "messages"), ("learn", "shuffled")])
def test_a_topic_that_was_deleted_and_created_again_is_refused(
    make: Callable[..., Parties], quick: Any, command: str, which: str
) -> None:
    """Until now, the offsets in the store were taken for those of the new topic."""
    parties = make(batch=20)
    write_data(parties.folder, 100)
    with parties.start("learn") as learner, parties.start("mix") as mixer:
        with parties.start("randomize") as devices:
            assert devices.end(180) == 0
        learner.until(lambda: learner.of("learned"), 180)
        assert [stop(mixer), stop(learner)] == [0, 0]
    store = {"mix": "shy-shuffler.db", "learn": "shy.db"}[command]
    before = parties.snapshot(store)
    delete_and_create(parties.bootstrap, parties.topic(which))
    parties.send(which, *[(None, b"x")] * 200)
    err = quick.error(3, "shuffle", command, "job.yaml", "--idle-seconds", "1", bootstrap=parties.bootstrap)
    assert "deleted and created again" in err
    after = parties.snapshot(store)
    assert (after.seq, after.position) == (before.seq, before.position)


def test_a_log_that_is_created_again_while_it_is_read_is_noticed(broker: Any, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    send(broker.bootstrap, topic, numbers(3))
    with contextlib.closing(TopicLog(topic, broker.bootstrap)) as log:
        log.seek(0)
        assert read(log)[0] == b"0"
        delete_and_create(broker.bootstrap, topic)
        send(broker.bootstrap, topic, numbers(10))
        with pytest.raises(SourceError, match="deleted and created again"):
            read(log)
