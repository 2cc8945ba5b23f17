"""The demo: two private models of 336,776 real departures, learned as a stream. Run with `make demo`.

January to November are the stream, in the order of the schedule; December is declared public and measures every commit.
Each record brings its own epsilon (1, 2 or 4, fixed by the aircraft). The jobs are `late.yaml` and `delay.yaml` in this
folder. The table and the figure compare them with the same two models without noise, and with the best constant.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamdp import datasets
from streamdp.config.job import JobConfig, load_config
from streamdp.runtime.learning import total
from streamdp.runtime.runner import Progress as JobProgress
from streamdp.runtime.runner import Runner
from streamdp.serving.holdout import Holdout
from streamdp.serving.publish import Publisher, committed, weights
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "demo-output"


@dataclass
class Run:
    """One model over the stream: what it measured at every commit."""

    name: str
    measure: str
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    records: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, records: int, measures: dict[str, Any]) -> None:
        self.records.append(records)
        self.values.append(float(measures[self.measure]))


def private(config: JobConfig, holdout: Holdout, measure: str, progress: Progress, rows: int) -> Run:
    """Run the job as `streamdp run` does: CSV -> validate -> learn -> commit -> publish, measured at every commit."""
    run = Run("private", measure)
    bar = progress.add_task(f"{config.job}, private", total=rows)

    def show(state: JobProgress) -> None:
        progress.update(bar, completed=total(state.counts))

    def listen(snapshot: Snapshot, measures: dict[str, Any] | None) -> None:
        run.add(total(snapshot.counts), measures or {})

    source = config.build_source(config.build_schema())
    dead_letters = config.source.build_dead_letters()
    with Store(config.store_path, config.job, config.fingerprint(), config=config.text()) as store:
        estimator: Any = config.build_estimator(store.ledger)
        publisher = Publisher(config.publish, holdout, (listen,))
        runner = Runner(source, estimator, store, dead_letters=dead_letters, publish=[publisher], on_progress=show)
        started = time.perf_counter()
        run.counts = runner.run()
        run.seconds = time.perf_counter() - started
    source.close()
    if dead_letters is not None:
        dead_letters.close()
    return run


def without_privacy(config: JobConfig, holdout: Holdout, measure: str, progress: Progress, rows: int) -> Run:
    """The same model on the same records without noise."""
    run = Run("without privacy", measure)
    bar = progress.add_task(f"{config.job}, without privacy", total=rows)
    model = config.model.model_copy(update={"mechanism": "none"})
    estimator: Any = config.model_copy(update={"model": model}).build_estimator(None)
    source = config.build_source(config.build_schema())
    while not source.finished:
        batch = source.poll(config.commit.records, 1.0)
        if len(batch):
            estimator.learn_arrays(batch.X, batch.y, batch.budgets)
        progress.advance(bar, len(batch) + len(batch.dead))
        run.add(source.position["row"], holdout.measure(estimator))
    source.close()
    return run


def constant(config: JobConfig) -> float:
    """The score of the best constant in December: the majority class, or the median delay of the stream."""
    flights = datasets.flights()
    column = config.schema_.target.column
    known = flights.drop_nulls(column)
    stream = known.filter(known["month"].is_in(datasets.TRAINING_MONTHS))[column]
    december = known.filter(known["month"].is_in(datasets.HOLDOUT_MONTHS))[column]
    if config.schema_.target.classes is not None:
        return float((december == stream.mode()[0]).mean())  # type: ignore[arg-type]
    low, high = config.schema_.target.bounds or (-np.inf, np.inf)
    return float((december.clip(low, high) - float(stream.median())).abs().mean())  # type: ignore[arg-type]


def report(console: Console, config: JobConfig, runs: list[Run], best_constant: float, unit: str) -> None:
    """Print the measure with its baselines, the weights and the statement."""
    first = runs[0]
    console.rule(f"[bold]{config.job}")
    table = Table(title=f"{first.measure.replace('_', ' ')} in December, {unit}")
    for column in ("private", "without privacy", "best constant"):
        table.add_column(column, justify="right")
    table.add_row(*(f"{run.values[-1]:.3f}" for run in runs), f"{best_constant:.3f}")
    console.print(table)
    model = committed(config.store_path)
    table = Table("weight", title="weights with 95 % intervals")
    for column in ("estimate", "from", "to"):
        table.add_column(column, justify="right")
    for weight in weights(model.estimator):
        ends = (weight.value, weight.low, weight.high)
        table.add_row(weight.name, *("" if v is None else f"{v:.3f}" for v in ends))
    console.print(table)
    console.print(model.estimator.statement(), highlight=False)
    counts = first.counts
    console.print(
        f"\n{total(counts):,} records in {first.seconds:.1f} s ({total(counts) / first.seconds:,.0f} a second, with "
        f"{len(first.records)} commits and measurements): {counts.learned:,} learned, {counts.refused:,} refused, "
        f"{counts.dead:,} dead letters (cancelled or diverted flights: they have no arrival)."
    )


def figure(path: Path, panels: list[tuple[str, list[Run], float]]) -> None:
    """Draw the error on the holdout over the stream."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(1, len(panels), figsize=(11, 4), layout="constrained")
    for axis, (title, runs, best_constant) in zip(axes, panels, strict=True):
        accuracy = runs[0].measure == "accuracy"
        for run, color in zip(runs, ("tab:blue", "tab:gray"), strict=True):
            values = 1 - np.array(run.values) if accuracy else np.array(run.values)
            axis.plot(run.records, values, label=run.name, color=color)
        axis.axhline(1 - best_constant if accuracy else best_constant, color="tab:red", ls="--", label="best constant")
        axis.set(title=title, xlabel="records of the stream", ylim=(0, None))
        axis.set_ylabel("share misclassified in December" if accuracy else "mean absolute error in December, minutes")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
        axis.legend()
        axis.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, dpi=150)


def main() -> None:
    console = Console()
    OUTPUT.mkdir(exist_ok=True)
    for old in OUTPUT.iterdir():  # a demo starts from nothing; a job would resume
        old.unlink()
    rows = datasets.write_flights_csv(OUTPUT / "train.csv", months=datasets.TRAINING_MONTHS)
    december = datasets.write_flights_csv(OUTPUT / "holdout.csv", months=datasets.HOLDOUT_MONTHS)
    console.print(f"{rows + december:,} departures from New York in 2013: {rows:,} as the stream, December to measure.")
    panels = []
    jobs = [("late.yaml", "accuracy", "share"), ("delay.yaml", "mean_absolute_error", "minutes")]
    results = []
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for file, measure, unit in jobs:
            config = load_config(HERE / file)
            holdout = Holdout(config)
            runs = [train(config, holdout, measure, progress, rows) for train in (private, without_privacy)]
            results.append((config, runs, constant(config), unit))
    for config, runs, best_constant, unit in results:
        report(console, config, runs, best_constant, unit)
        panels.append((config.job, runs, best_constant))
    figure(OUTPUT / "error.png", panels)
    console.print(f"\nThe error over the stream: {OUTPUT.name}/error.png. What was committed: streamdp status ", end="")
    console.print(f"{OUTPUT.name}/late.db, or weights, statement, predict.", highlight=False)


if __name__ == "__main__":
    main()
