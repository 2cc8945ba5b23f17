"""The Kafka demo: two workers of one group learn from a topic of 336,776 departures. Run with `make demo-kafka`.

A real broker (started here, or named by STREAMDP_KAFKA) gets the flights of January to November in a topic of four
partitions, keyed by aircraft. Two `streamdp run` share the partitions. The model that they publish to a compacted topic
is read without the database, and compared on December with one model that reads the whole stream in one pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

import streamdp
from connectors.kafkasink import make_topic
from examples.flights import HERE, OUTPUT, constant
from servers.broker import Broker
from streamdp import datasets
from streamdp.cli.kafka_job import lags
from streamdp.config.job import JobConfig, load_config
from streamdp.data.records import Position, Shard
from streamdp.privacy.statement import brief
from streamdp.serving.holdout import Holdout
from streamdp.serving.publish import weights
from streamdp.store.store import Store

JOB = HERE / "late-kafka.yaml"
TOPIC, PARTITIONS, WORKERS = "flights", 4, 2


def streamdp_command(*arguments: str, log: Path, brokers: str) -> subprocess.Popen[bytes]:
    """The `streamdp` command as a user types it; its output goes to `log`."""
    environment = os.environ | {"STREAMDP_KAFKA": brokers}
    command = [sys.executable, "-m", "streamdp", *arguments]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=HERE.parent)


def positions(store: str) -> dict[Shard, Position]:
    """The committed position of each partition; its beginning before the first commit."""
    found: dict[Shard, Position] = {Shard(TOPIC, number): {"offset": 0} for number in range(PARTITIONS)}
    if Path(store).exists():
        found |= {snapshot.shard: snapshot.position for snapshot in Store.snapshots(store)}
    return found


def watch(console: Console, config: JobConfig, brokers: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Show committed records and lag of each partition until the workers have ended."""
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            ended = all(process.poll() is not None for process in processes)
            done = positions(config.store_path)
            table = Table("partition", title=f"{sum(p['offset'] for p in done.values()):,} records committed")
            for column in ("committed", "lag"):
                table.add_column(column, justify="right")
            for shard, lag in sorted(lags(brokers, {}, done).items()):
                table.add_row(str(shard), f"{done[shard]['offset']:,}", f"{lag:,}")
            live.update(table)
            if ended:
                return
            time.sleep(1.0)


def one_pass(config: JobConfig, holdout: Holdout) -> float:
    """Accuracy of one model over the whole stream in its order, with the same budgets and no cap."""
    file = config.source.for_file(str(OUTPUT / "train.csv"))
    estimator: Any = config.model_copy(update={"cap": None}).build_estimator()
    source = file.build(config.build_schema())
    while not source.finished:
        batch = source.poll(100_000, 1.0)
        if len(batch):
            estimator.learn_encoded(batch.X, batch.y, batch.budgets)
    source.close()
    return float(holdout.measure(estimator)["accuracy"])


def main() -> None:
    console = Console()
    OUTPUT.mkdir(exist_ok=True)
    for old in OUTPUT.glob("late-kafka*"):  # a demo starts from nothing; a job would resume
        old.unlink()
    rows = datasets.write_flights_csv(OUTPUT / "train.csv", months=datasets.TRAINING_MONTHS)
    datasets.write_flights_csv(OUTPUT / "holdout.csv", months=datasets.HOLDOUT_MONTHS)
    config = load_config(JOB)
    with ExitStack() as stack:
        brokers = os.environ.get("STREAMDP_KAFKA")
        if brokers is None:
            import tempfile

            console.print("Starting Kafka ...")
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            brokers = stack.enter_context(Broker(folder)).bootstrap
        make_topic(TOPIC, brokers, PARTITIONS)
        make_topic(f"{TOPIC}.dead", brokers, 1)
        make_topic("models", brokers, 1, **{"cleanup.policy": "compact"})
        console.print(f"Kafka at {brokers}: {rows:,} departures go to the topic {TOPIC!r} of {PARTITIONS} partitions.")
        started = time.perf_counter()
        produced = streamdp_command(
            "produce",
            str(OUTPUT / "train.csv"),
            "--topic",
            TOPIC,
            "--key",
            "tailnum",
            log=OUTPUT / "late-kafka.produce.log",
            brokers=brokers,
        )
        workers = [
            streamdp_command(
                "run", str(JOB), "--idle-seconds", "5", log=OUTPUT / f"late-kafka.{number}.log", brokers=brokers
            )
            for number in range(WORKERS)
        ]
        watch(console, config, brokers, [produced, *workers])
        seconds = time.perf_counter() - started
        for process in (produced, *workers):
            if process.returncode:
                raise SystemExit(f"a command ended with {process.returncode}; see {OUTPUT.name}/late-kafka.*.log")
        model = streamdp.load_snapshot(brokers, "models", config.job)
    counts = model.snapshot.counts
    total = counts.learned + counts.refused + counts.dead_letters
    holdout = Holdout(config)
    estimator: Any = model.estimator
    table = Table("accuracy in December", title="the published model, read from the topic")
    table.add_column("share", justify="right")
    table.add_row(f"average of {PARTITIONS} shards, private", f"{holdout.measure(estimator)['accuracy']:.3f}")
    table.add_row("one pass over the stream, private", f"{one_pass(config, holdout):.3f}")
    table.add_row("best constant", f"{constant(config):.3f}")
    console.print(table)
    table = Table("weight", title="weights")
    table.add_column("estimate", justify="right")
    for weight in weights(estimator):
        table.add_row(weight.name, f"{weight.value:+.3f}")
    console.print(table)
    console.print(brief(model.statement()), highlight=False)
    console.print(
        f"\n{total:,} of {rows:,} records counted in {seconds:.0f} s, the producer and the group's waiting included: "
        f"{counts.learned:,} learned, {counts.refused:,} refused over an aircraft's cap, {counts.dead_letters:,} dead "
        "letters."
    )
    if total != rows:
        raise SystemExit("some records were not counted, or counted twice")


if __name__ == "__main__":
    main()
