"""What an executor does with the rows of a partition, without Spark around it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from streamdp.config.job import make_config
from streamdp.errors import SourceError
from streamdp.ledger.ledger import Ledger
from streamdp.spark.records import LOAD, PLACE, SHARD
from streamdp.spark.sealing import Seal
from streamdp.spark.task import Result, ShardTask, SparkShard, encode_load
from streamdp.store.snapshot import Counts

NAMES = [f"f{i}" for i in range(20)]
LOAD_OF_NEW = encode_load(None)


def config(**model: Any) -> Any:
    chosen = {"estimator": "LDPSGDRegressor", "loss": "huber", "budget": "mu=1", "scaling": "none"} | model
    features = {name: [-1, 1] for name in NAMES}
    return make_config(
        {
            "job": "j",
            "schema": {"features": features, "target": {"column": "y", "bounds": [-1, 1]}},
            "model": chosen,
            "source": {"type": "spark"},
        }
    )


def rows(shards: list[int], n: int) -> pa.RecordBatch:
    """The load and n records of each shard, in order, as Spark sends them."""
    numbers = np.repeat(shards, n + 1)
    place = np.tile(np.arange(-1, n), len(shards))
    loads = [LOAD_OF_NEW if p < 0 else None for p in place]
    values = {f"c{i}": [None if p < 0 else 0.1 * (i % 5) for p in place] for i in range(len(NAMES) + 1)}
    return pa.RecordBatch.from_pydict(
        {**values, SHARD: pa.array(numbers, pa.int64()), PLACE: pa.array(place, pa.int64()), LOAD: pa.array(loads)}
    )


def run(job: Any, batches: Iterator[pa.RecordBatch]) -> dict[int, Result]:
    seal = Seal()
    out = {}
    for batch in ShardTask(job.text(), seal.public, None)(batches):
        (shard,), (sealed,) = batch.column(SHARD).to_pylist(), batch.column("sealed").to_pylist()
        out[shard] = Result.decode(seal.open(sealed), shard)
    return out


def test_shards_of_a_partition_are_learned_one_by_one_however_arrow_cuts_them() -> None:
    job = config(seed=1)
    whole = rows([2, 5, 7], 40)
    first = run(job, iter([whole]))
    assert first.keys() == {2, 5, 7}
    assert all(result.counts == Counts(40) for result in first.values())
    cut = run(job, iter([whole.slice(i, 7) for i in range(0, whole.num_rows, 7)]))
    for shard, result in first.items():
        for name, value in result.state.items():
            np.testing.assert_array_equal(cut[shard].state[name], value)


@pytest.mark.slow
def test_the_noise_of_executors_is_fresh_and_has_the_scale_of_the_estimator() -> None:
    """300 tasks of one record of 21 parameters against 300 estimators: variances within 13 %, at false alarm 1e-6.

    The standard deviation of the ratio is sqrt(4 / (299 * 21)) = 2.5 %, and 20 % off is seen.
    """
    job, n = config(), 300
    batch = rows(list(range(n)), 1)
    found = np.array([result.state["state"][0] for result in run(job, iter([batch])).values()])
    x, expected = np.array([[0.1 * (i % 5) for i in range(20)]]), []
    schema = job.build_schema()
    frame = {name: [value] for name, value in zip((*NAMES, "y"), [*x[0].tolist(), 0.0], strict=True)}
    for _ in range(n):
        estimator = job.build_estimator()
        encoded = schema.encode(pl.DataFrame(frame), np.zeros(1, np.int64), {})
        estimator.learn_encoded(encoded.X, encoded.y)
        expected.append(estimator.state_dict()["state"][0])
    ours, theirs = found.var(axis=0, ddof=1).mean(), np.array(expected).var(axis=0, ddof=1).mean()
    assert abs(ours / theirs - 1) < 0.13
    assert len(np.unique(found[:, 0])) == n


def test_an_unexpected_error_shows_no_value() -> None:
    broken = rows([0], 3).drop_columns(["c0"])
    with pytest.raises(SourceError, match="unexpected KeyError") as caught:
        run(config(), iter([broken]))
    assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(SourceError, match="without its load"):
        run(config(), iter([rows([0], 3).slice(1)]))


def test_a_shard_knows_the_caps_under_which_its_people_may_be_charged() -> None:
    with Ledger("mu=2") as ledger:
        ledger.set_cap("ann", "mu=9")
        load = encode_load(None, ledger.export_rows(["ann"], bytes(32)), np.ones(1, dtype=np.bool_))
        item = config().model_dump(mode="json", by_alias=True, exclude_defaults=True)
        job = make_config(item | {"cap": "mu=2", "schema": item["schema"] | {"subject": "who"}})
        lane = SparkShard(0, load, job.text(), bytes(32))
        assert lane.estimator.ledger.history == ledger.history
