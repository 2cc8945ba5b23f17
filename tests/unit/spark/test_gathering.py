"""What executors do with users of a window, and what the driver makes of their sums, without Spark around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamdp import WindowedRegressor
from streamdp.config.job import JobConfig, make_config
from streamdp.errors import ConfigError, NotAtBoundaryError, SourceError, TooFewUsersError
from streamdp.optim.curvature import Curvature
from streamdp.optim.losses import Huber
from streamdp.spark import task
from streamdp.spark.records import LOAD, PLACE, SHARD
from streamdp.spark.sealing import Seal
from streamdp.spark.task import (
    SEALED,
    ClusterUsers,
    Gather,
    GatheredRecords,
    Result,
    ShardTask,
    SumTask,
    encode_load,
    learn_batches,
)
from streamdp.stats import Statistics
from streamdp.windows.records import WindowRecords

ITEMS, USERS = 3, 400


WINDOW = {"estimator": "WindowedRegressor", "budget": "eps=8,delta=1e-6", "items_per_user": ITEMS, "seed": 1}


def config(model: dict[str, Any] = WINDOW) -> JobConfig:
    schema = {"features": {"a": [-1, 1], "b": [0, 9]}, "target": {"column": "y", "bounds": [-1, 1]}, "subject": "who"}
    return make_config({"job": "j", "schema": schema, "model": model, "source": {"type": "spark"}})


def records(seed: int = 0) -> list[dict[str, Any]]:
    """Users with one to five records, in any order."""
    rng = np.random.default_rng(seed)
    people = np.repeat(np.arange(USERS), rng.integers(1, 6, USERS))
    rng.shuffle(people)
    return [{"a": rng.uniform(-1, 1), "b": rng.uniform(0, 9), "y": rng.uniform(-1, 1), "who": f"u{i}"} for i in people]


def partition(
    shard: int, rows: list[dict[str, Any]], state: Any = None, chosen: Sequence[int] = range(4)
) -> pa.RecordBatch:
    """The load and the records of a shard, as Spark sends them: with the chosen of all columns."""
    names = [config().build_schema().columns[i] for i in chosen]
    values = {f"c{i}": [None, *(row[name] for row in rows)] for i, name in enumerate(names)}
    load = encode_load(state)
    place = pa.array(range(-1, len(rows)), pa.int64())
    loads = pa.array([load] + [None] * len(rows), pa.binary())
    return pa.RecordBatch.from_pydict(
        {**values, SHARD: pa.array([shard] * (len(rows) + 1), pa.int64()), PLACE: place, LOAD: loads}
    )


class Gathered:
    """As much of a DataFrame as `ClusterUsers` needs: partitions, which a task reads one by one."""

    def __init__(self, partitions: list[list[pa.RecordBatch]]) -> None:
        self.partitions = partitions

    def where(self, condition: str) -> Gathered:
        column, number = condition.split(" = ")
        return Gathered([[b for b in rows if b.column(column)[0].as_py() == int(number)] for rows in self.partitions])

    def drop(self, name: str) -> Gathered:
        return Gathered([[b.drop_columns([name]) for b in batches] for batches in self.partitions])

    def select(self, *names: str) -> Gathered:
        return Gathered([[b.select(list(names)) for b in batches] for batches in self.partitions])

    def mapInArrow(self, task: Any, schema: str) -> Gathered:
        return Gathered([list(task(iter(batches))) for batches in self.partitions])

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches([batch for batches in self.partitions for batch in batches])


def gathered(seal: Seal, shards: int) -> tuple[Gathered, list[Result]]:
    parts: list[list[dict[str, Any]]] = [[] for _ in range(shards)]
    for row in records():
        parts[int(row["who"][1:]) % shards].append(row)
    task = Gather.of(config(), seal.public, None, shards)
    partitions = [list(task(iter([partition(i, part)]))) for i, part in enumerate(parts)]
    results = [Result.decode(seal.open(p[0].column(SEALED)[0].as_py()), i) for i, p in enumerate(partitions)]
    return Gathered(partitions), results


def cluster(blocks: Gathered, seal: Seal, results: list[Result]) -> ClusterUsers:
    learner: Any = config().build_estimator()
    return ClusterUsers(GatheredRecords(blocks, config().text(), seal, results), learner)  # type: ignore[arg-type]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_BLOCK", 90)


def test_sums_do_not_depend_on_how_users_are_divided(small_blocks: None) -> None:
    seal, rows = Seal(), records()
    learner: Any = config().build_estimator()
    kept: dict[str, list[np.ndarray]] = {}
    for row in rows:
        x = np.array([row["a"], row["b"] / 4.5 - 1, row["y"]])
        kept.setdefault(row["who"], []).append(x)
    users = [np.array(items[:ITEMS]) for items in kept.values()]
    flat = np.concatenate(users)
    sizes = np.array([len(items) for items in users])
    first = None
    for shards in (1, 3):
        blocks, results = gathered(seal, shards)
        assert len(blocks.partitions[0]) > 10
        assert sum(sum(result.state["users"]) for result in results) == USERS
        assert sum(result.counts.learned for result in results) == len(flat)
        assert sum(result.counts.left_out for result in results) == len(rows) - len(flat)
        theirs = cluster(blocks, seal, results)
        ours: WindowRecords = learner.learner.users_of(flat[:, :2].copy(), flat[:, 2].copy(), sizes)
        curvature, theta, grid = Curvature(Huber(), 3), np.array([0.1, 0.2, -0.1, 1.0]), 2.0**-20
        columns, frame = np.array([0, 1]), np.array([[0.1, 0.0], [0.5, 0.25]])
        np.testing.assert_allclose(theirs.moments(columns, frame, grid), ours.moments(columns, frame, grid), atol=1e-5)
        np.testing.assert_allclose(theirs.sizes(columns, grid), ours.sizes(columns, grid), atol=1e-5)
        theirs.rescale(columns, frame, (0.5, 0.1))
        ours.rescale(columns, frame, (0.5, 0.1))
        assert theirs.link == ours.link == (0.5, 0.1)
        found = theirs.curvatures(curvature, theta, grid)
        np.testing.assert_allclose(found, ours.curvatures(curvature, theta, grid), atol=1e-4)
        assert np.abs(found).min() > 0.01
        first = found if first is None else first
        np.testing.assert_array_equal(found, first)


def test_other_records_than_at_first_are_noticed(small_blocks: None) -> None:
    seal = Seal()
    blocks, results = gathered(seal, 2)
    ask = np.array([0]), np.array([[0.0], [1.0]]), 2.0**-20
    whole = cluster(blocks, seal, results)
    whole.moments(*ask)

    def changed() -> Iterator[list[pa.RecordBatch]]:
        first, second = blocks.partitions
        yield [first[:-1], second]
        yield [[*first, first[-1]], second]
        features = bytearray(first[1].column("features")[0].as_py())
        features[3] ^= 1
        other = first[1].set_column(3, "features", pa.array([bytes(features)], pa.binary()))
        yield [[first[0], other, *first[2:]], second]

    for partitions in changed():
        users = cluster(Gathered(partitions), seal, results)
        with pytest.raises(SourceError, match="other records"):
            users.moments(*ask)


def test_nothing_that_leaves_an_executor_but_blocks_can_be_read() -> None:
    """Each row has records, or a box that only the driver opens; nobody else can."""
    seal = Seal()
    blocks, _ = gathered(seal, 2)
    for batches in blocks.partitions:
        for batch in batches:
            sealed, features = batch.column(SEALED)[0].as_py(), batch.column("features")[0].as_py()
            assert (sealed is None) != (features is None)
            if sealed is not None:
                with pytest.raises(SourceError):
                    Seal().open(sealed)
    with pytest.raises(NotImplementedError):
        cluster(blocks, seal, []).gradients(np.zeros(4))


def test_a_shard_without_people_says_so() -> None:
    seal = Seal()
    (row,) = Gather.of(config(), seal.public, None, 1)(iter([partition(0, [])]))
    result = Result.decode(seal.open(row.column(SEALED)[0].as_py()), 0)
    assert (result.state["users"], result.counts.learned) == ([0], 0)


@pytest.mark.parametrize("shards", [1, 3])
def test_batches_on_executors_are_those_of_one_process(shards: int, small_blocks: None) -> None:
    """All numbers of the state, with the noise of a seed, from the rows that Spark sends, dealt in turn."""
    job = config({"estimator": "PanPrivateRegressor", "batch_size": 300, "seed": 1})
    rows, seal = records(), Seal()
    task = Gather.of(job, seal.public, None, shards)
    partitions = [list(task(iter([partition(i, rows[i::shards])]))) for i in range(shards)]
    results = [Result.decode(seal.open(p[0].column(SEALED)[0].as_py()), i) for i, p in enumerate(partitions)]
    blocks: Any = Gathered(partitions)
    driver, one = job.build_estimator(), job.build_estimator()
    learn_batches(GatheredRecords(blocks, job.text(), seal, results), driver)
    one.learn_encoded(np.array([[row["a"], row["b"] / 4.5 - 1] for row in rows]), np.array([row["y"] for row in rows]))
    one.close_batch()
    ours, theirs = driver.state_dict(), one.state_dict()
    assert driver.n_seen == len(rows) == sum(result.counts.learned for result in results)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


DECLARED = {"m": {"mean": "b"}, "h": {"histogram": "a", "edges": [-1, 0, 0.5, 1]}}


@pytest.mark.parametrize(
    ("shards", "every", "trust"),
    [(1, None, "process"), (3, None, "process"), (1, "1 day", "process"), (3, "1 day", "process"), (3, None, "window")],
)
def test_sums_of_statistics_on_executors_are_those_of_one_process(shards: int, every: str | None, trust: str) -> None:
    """All numbers of the state, with the noise of a seed, after two batches of Spark; rows are dealt in turn."""
    schema: dict[str, Any] = {"features": {"a": [-1, 1], "b": [0, 9]}, "subject": "who"}
    model: dict[str, Any] = {"trust": trust, "budget": "eps=1,delta=1e-6", "batch_size": 300, "seed": 1}
    model |= {"every": every} if every else {}
    given = {"job": "j", "schema": schema, "model": model, "statistics": DECLARED, "source": {"type": "spark"}}
    if every:
        schema["time"] = {"column": "y", "unit": "seconds"}
    job, rows, seal = make_config(given), records(), Seal()
    for i, row in enumerate(rows):
        row["y"] = str(1e9 + 200 * i)  # about three days
    names = [0, 1, 3] if not every else [0, 1, 3, 2]
    driver, one = job.build_estimator(), job.build_estimator()
    for part in (rows[:700], rows[700:]):
        results = []
        for i in range(shards):
            state = driver.state_dict() if part[0] is not rows[0] else None
            sent = partition(i, part[i::shards], state, names)
            (row,) = SumTask(job.text(), seal.public, None, shards)(iter([sent]))
            results.append(Result.decode(seal.open(row.column(SEALED)[0].as_py()), i))
        driver.add_sums([result.state for result in results], sum(result.counts.learned for result in results))
        assert not any(result.state["sums"].any() for result in results)  # overwritten
        X = np.array([[row["a"], row["b"] / 4.5 - 1] for row in part])
        one.learn_encoded(X, np.array([float(row["y"]) for row in part]))
        one.close_batch()
    ours, theirs = driver.state_dict(), one.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_a_model_and_statistics_that_trust_nobody_are_learned_in_shards() -> None:
    """Each record is learned by one of both, and the shards add up."""
    schema = {"features": {"a": [-1, 1], "b": [0, 9]}, "target": {"column": "y", "bounds": [-1, 1]}, "subject": "who"}
    given = {"job": "j", "schema": schema, "model": {"trust": "nobody", "budget": "eps=4", "seed": 1}}
    job, rows, seal = make_config(given | {"statistics": DECLARED, "source": {"type": "spark"}}), records(), Seal()
    shards: list[Any] = []
    for i in range(2):
        (row,) = ShardTask(job.text(), seal.public, None)(iter([partition(i, rows[i::2])]))
        shards.append(job.build_estimator())
        shards[-1].load_state_dict(Result.decode(seal.open(row.column(SEALED)[0].as_py()), i).state)
    model = shards[0].merged(shards[1])
    assert model.n_seen == len(rows)
    assert model.estimated.get()["m"] == pytest.approx(4.5, abs=1)


def test_a_batch_of_sums_has_at_most_the_records_that_were_planned() -> None:
    """Its noise is calibrated for them."""
    learner = Statistics({"m": {"mean": "a"}}, {"a": (-1, 1)}, trust="shuffler")
    part = {"windows": np.zeros(1, int), "rows": np.array([1001]), "sums": np.ones((1, 3), int)}
    with pytest.raises(ConfigError, match="1000 records cannot have 1001"):
        learner.add_sums([part], 1001)


def test_a_learner_of_users_elsewhere_keeps_the_rules_of_windows() -> None:
    learner = WindowedRegressor(features=["a", "b"], budget="eps=8,delta=1e-6")
    users: Any = learner.learner.users_of(np.zeros((1, 2)), np.zeros(1), np.ones(1, np.int64))
    with pytest.raises(TooFewUsersError) as caught:
        learner.learn_users(users, 1, 1)
    assert caught.value.needed == learner.learner.least_users
    assert (learner.n_seen, learner.guarantee.budgets) == (0, ())
    learner.learn_one({"a": 1.0, "b": 1.0}, 1.0, subject="ann")
    with pytest.raises(NotAtBoundaryError):
        learner.learn_users(users, 10_000, 10_000)
    X, y, sizes = learner.take_records()
    assert (X.tolist(), y.tolist(), sizes.tolist()) == ([[1.0, 1.0]], [1.0], [1])
    assert learner.at_boundary
    other = WindowedRegressor(features=["a", "b"], method="private-range", budget="eps=8,delta=1e-6")
    with pytest.raises(ConfigError, match="newton"):
        other.learn_users(users, 10_000, 10_000)
