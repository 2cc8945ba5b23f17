"""The demo: two private models of 336,776 real departures, learned as a stream. Run with `make demo`.

January to November are the stream, in the order of the schedule; December is declared public and measures every commit.
Each record brings its own epsilon (1, 2 or 4, fixed by the aircraft). The jobs are `late.yaml` and `delay.yaml` in this
folder. Each is learned again with other noise, so that nobody takes one lucky or unlucky run for the rule. The table
and the figure compare them with scikit-learn's models without privacy, and with the best constant.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamdp import datasets
from streamdp.config.job import JobConfig, load_config
from streamdp.data.records import Batch
from streamdp.runtime.learning import total
from streamdp.runtime.runner import Progress as JobProgress
from streamdp.runtime.runner import Runner
from streamdp.serving.holdout import Holdout
from streamdp.serving.publish import Publisher, committed, unsettled, weights
from streamdp.store.snapshot import Counts, Snapshot
from streamdp.store.store import Store

DRAWS = 8
HERE = Path(__file__).parent
OUTPUT = HERE.parent / "demo-output"


@dataclass
class Run:
    """One model over the stream: what it measured at every commit."""

    measure: str
    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0
    records: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, records: int, measures: dict[str, Any]) -> None:
        self.records.append(records)
        self.values.append(float(measures[self.measure]))


@dataclass
class Result:
    """A job, its measures with the noise of the run and with other noise, and its two baselines."""

    config: JobConfig
    run: Run
    records: np.ndarray
    draws: np.ndarray
    plain: float
    constant: float
    unit: str


def private(config: JobConfig, holdout: Holdout, measure: str, progress: Progress, rows: int) -> Run:
    """Run the job as `streamdp run` does: CSV -> validate -> learn -> commit -> publish, measured at every commit."""
    run = Run(measure)
    bar = progress.add_task(f"{config.job}, private", total=rows)

    def show(state: JobProgress) -> None:
        progress.update(bar, completed=total(state.counts))

    def listen(snapshot: Snapshot, measures: dict[str, Any] | None) -> None:
        run.add(total(snapshot.counts), measures or {})

    source = config.source.build(config.build_schema())
    dead_letters = config.source.build_dead_letters()
    with Store(config.store_path, config.job, config.fingerprint(), config=config.text()) as store:
        estimator: Any = config.build_estimator(store.ledger)
        publisher = Publisher(config.publish, holdout, config.store_path, (listen,))
        runner = Runner(source, estimator, store, dead_letters=dead_letters, publish=[publisher], on_progress=show)
        started = time.perf_counter()
        run.counts = runner.run()
        run.seconds = time.perf_counter() - started
    source.close()
    if dead_letters is not None:
        dead_letters.close()
    return run


def stream(config: JobConfig) -> Iterator[Batch]:
    """The encoded records of the job, a commit's worth at a time."""
    source = config.source.build(config.build_schema())
    while not source.finished:
        yield source.poll(config.commit.records, 1.0)
    source.close()


def again(config: JobConfig, holdout: Holdout, measure: str, progress: Progress, batches: list[Batch]) -> np.ndarray:
    """The same job with other noise, `DRAWS` times: (draws, commits) measures."""
    bar = progress.add_task(f"{config.job}, other noise", total=DRAWS * len(batches))
    out = np.empty((DRAWS, len(batches)))
    for draw in out:
        estimator: Any = config.build_estimator(None)
        for i, batch in enumerate(batches):
            estimator.learn_encoded(batch.X, batch.y, batch.budgets)
            draw[i] = holdout.measure(estimator)[measure]
            progress.advance(bar)
    return out


def fitted(X: np.ndarray, y: np.ndarray, classify: bool) -> Any:
    """scikit-learn's model of the logistic or of Huber's loss, on standardised columns."""
    from sklearn.linear_model import HuberRegressor, LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    learner = LogisticRegression(C=1e6, max_iter=1000) if classify else HuberRegressor(alpha=0.0, max_iter=1000)
    return make_pipeline(StandardScaler(), learner).fit(X, y)


class WithoutPrivacy:
    """`fitted` on the same records, as `Holdout.measure` takes it."""

    probabilistic = False
    loss = None
    learner = SimpleNamespace(n_released=1)

    def __init__(self, config: JobConfig, batches: list[Batch]) -> None:
        X, y = np.concatenate([b.X for b in batches]), np.concatenate([b.y for b in batches])
        self._model = fitted(X, y, config.schema_.target.classes is not None)

    def predict_encoded(self, X: np.ndarray) -> np.ndarray:
        predicted: np.ndarray = self._model.predict(X)
        return predicted


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


def report(console: Console, result: Result) -> None:
    """Print the measure with its baselines, the weights and the statement."""
    config, first, last = result.config, result.run, result.draws[:, -1]
    console.rule(f"[bold]{config.job}")
    table = Table(title=f"{first.measure.replace('_', ' ')} in December, {result.unit}")
    for column in ("private", f"{DRAWS} more draws of noise", "without privacy", "best constant"):
        table.add_column(column, justify="right")
    spread = f"{last.min():.3f} to {last.max():.3f}"
    table.add_row(f"{first.values[-1]:.3f}", spread, f"{result.plain:.3f}", f"{result.constant:.3f}")
    console.print(table)
    model = committed(config.store_path)
    table = Table("weight", title="weights with 95 % intervals")
    for column in ("estimate", "from", "to"):
        table.add_column(column, justify="right")
    shown = weights(model.estimator)
    for weight in shown:
        ends = ("not settled", "") if weight.low is None else (f"{weight.low:.4g}", f"{weight.high:.4g}")
        table.add_row(weight.name, f"{weight.value:.4g}", *ends)
    console.print(table)
    if (needed := unsettled(shown)) is not None:
        console.print(needed)
    console.print(model.statement(), highlight=False)
    counts = first.counts
    console.print(
        f"\n{total(counts):,} records in {first.seconds:.1f} s ({total(counts) / first.seconds:,.0f} a second, with "
        f"{len(first.records)} commits and measurements): {counts.learned:,} learned, {counts.refused:,} refused, "
        f"{counts.dead_letters:,} dead letters (cancelled or diverted flights: they have no arrival)."
    )


def figure(path: Path, results: list[Result]) -> None:
    """Draw the error on the holdout over the stream."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(1, len(results), figsize=(11, 4), layout="constrained")
    for axis, result in zip(axes, results, strict=True):
        accuracy = result.run.measure == "accuracy"

        def error(values: Any, accuracy: bool = accuracy) -> np.ndarray:
            return 1 - np.array(values) if accuracy else np.array(values)

        draws = error(result.draws)
        label = f"private, {DRAWS} draws of noise"
        axis.fill_between(
            result.records, draws.min(axis=0), draws.max(axis=0), color="tab:blue", alpha=0.3, label=label
        )
        axis.plot(result.run.records, error(result.run.values), label="private, the job", color="tab:blue")
        axis.axhline(error(result.plain), color="tab:gray", ls="-", label="without privacy, scikit-learn")
        axis.axhline(error(result.constant), color="tab:red", ls="--", label="best constant")
        axis.set(title=result.config.job, xscale="log", xlabel="records of the stream")
        axis.set(ylim=(0, 1.5 * error(result.constant)))
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
    jobs = [("late.yaml", "accuracy", "share"), ("delay.yaml", "mean_absolute_error", "minutes")]
    results = []
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for file, measure, unit in jobs:
            config = load_config(HERE / file)
            holdout, batches = Holdout(config), list(stream(config))
            run = private(config, holdout, measure, progress, rows)
            draws = again(config, holdout, measure, progress, batches)
            plain = float(holdout.measure(WithoutPrivacy(config, batches))[measure])
            records = np.cumsum([len(batch) + len(batch.dead) for batch in batches])
            results.append(Result(config, run, records, draws, plain, constant(config), unit))
    for result in results:
        report(console, result)
    figure(OUTPUT / "error.png", results)
    console.print(f"\nThe error over the stream: {OUTPUT.name}/error.png. What was committed: streamdp status ", end="")
    console.print(f"{OUTPUT.name}/late.db, or weights, statement, predict.", highlight=False)


if __name__ == "__main__":
    main()
