"""The Spark demo: a real Spark on this machine learns from 308,641 departures. Run with `make demo-spark`.

Each month from January to November is a file of a stream, and so a batch and a commit of a real Structured Streaming
query. In the middle, the query dies after a commit and before Spark notes it; a new one repeats the batch, which is
skipped. The model predicts December.
"""

from __future__ import annotations

import shutil
import time

from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Table

from examples.flights import HERE, OUTPUT, constant
from streamdp import datasets
from streamdp.config.job import load_config
from streamdp.errors import SourceError
from streamdp.privacy.statement import brief
from streamdp.serving.publish import committed, weights
from streamdp.serving.snapshots import combined
from streamdp.spark import learn_stream, predict
from streamdp.spark.reading import read, session
from streamdp.store.snapshot import Snapshot

JOB = HERE / "late-spark.yaml"


def main() -> None:
    console = Console()
    OUTPUT.mkdir(exist_ok=True)
    for old in OUTPUT.glob("late-spark*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    months = OUTPUT / "months"
    shutil.rmtree(months, ignore_errors=True)
    months.mkdir()
    rows = sum(
        datasets.write_flights_csv(months / f"{month:02}.csv", months=[month]) for month in datasets.TRAINING_MONTHS
    )
    datasets.write_flights_csv(OUTPUT / "holdout.csv", months=datasets.HOLDOUT_MONTHS)
    config = load_config(JOB)
    began = time.perf_counter()
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "OFF"}
    spark, _ = session(config, "local[2]", settings)
    console.print(f"Spark {spark.version} is up after {time.perf_counter() - began:.0f} s. {rows:,} departures.")
    commits = 0

    def show(snapshots: list[Snapshot]) -> None:
        nonlocal commits
        counts, commits = combined(snapshots).counts, commits + 1
        console.print(f"{counts.learned:,} learned, {counts.refused:,} refused, {counts.dead_letters:,} dead letters")
        if commits == 5:
            raise RuntimeError("the query dies here, after the commit")

    began = time.perf_counter()
    try:
        with learn_stream(read(spark, config), config, publish=[show]) as learner:
            learner.wait()
    except SourceError as error:
        console.print(f"{error}\nIt starts again from its checkpoint:")
    with learn_stream(read(spark, config), config, publish=[show]) as learner:
        learner.wait()
        counts = learner.counts
    seconds = time.perf_counter() - began
    holdout = spark.read.option("header", True).csv(str(OUTPUT / "holdout.csv"))
    right = sf.avg((sf.col("prediction") == sf.col("late")).cast("double"))
    accuracy = predict(holdout, config.store_path).filter("prediction is not null").select(right).first()
    assert accuracy is not None
    model = committed(config.store_path)
    table = Table("accuracy in December", title="two shards, averaged")
    table.add_column("share", justify="right")
    table.add_row("private", f"{accuracy[0]:.3f}")
    table.add_row("best constant", f"{constant(config):.3f}")
    console.print(table)
    table = Table("weight", title="weights")
    table.add_column("estimate", justify="right")
    for weight in weights(model.estimator):
        table.add_row(weight.name, f"{weight.value:+.3f}")
    console.print(table)
    console.print(brief(model.statement()), highlight=False)
    spark.stop()
    total = counts.learned + counts.refused + counts.dead_letters
    console.print(f"\n{total:,} of {rows:,} records counted in {seconds:.0f} s.")
    if total != rows:
        raise SystemExit("some records were not counted, or counted twice")


if __name__ == "__main__":
    main()
