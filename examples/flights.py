"""The demo: private models of 336,776 real departures, learned under each kind of trust. Run with `make demo`.

January to November are the stream, in the order of the schedule; December is declared public and measures the models.
The jobs `late.yaml` and `delay.yaml` in this folder run as `streamdp run` runs them, with the trust that a file has by
default. Then the same stream is learned by each trust, several times with other noise, so that nobody takes one lucky
or unlucky run for the rule. The table and the figure compare them with scikit-learn's models without privacy, and with
the best constant.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamdp import datasets
from streamdp.config.job import JobConfig, load_config
from streamdp.data.records import Batch
from streamdp.estimators.door import Trust, trust_of
from streamdp.privacy.statement import brief
from streamdp.runtime.learning import total
from streamdp.runtime.runner import Progress as JobProgress
from streamdp.runtime.runner import Runner
from streamdp.serving.holdout import Holdout
from streamdp.serving.publish import Publisher, committed, unsettled, weights
from streamdp.store.snapshot import Counts
from streamdp.store.store import Store

DRAWS = 5
FIRST = 1000
"""The records before the first measurement; each next one has twice as many."""
HERE = Path(__file__).parent
OUTPUT = HERE.parent / "demo-output"
JOBS = {"late.yaml": "share misclassified", "delay.yaml": "mean absolute error, minutes"}
COLORS = dict(zip(get_args(Trust), ("tab:red", "tab:blue", "tab:green", "tab:orange"), strict=True))


@dataclass
class Result:
    """A job as it ran; errors by trust, (draws, measurements), NaN before a model is released; and two baselines."""

    config: JobConfig
    counts: Counts
    seconds: float
    error: str  # what it is
    records: np.ndarray  # before each measurement
    errors: dict[Trust, np.ndarray]
    plain: float
    constant: float


def run(config: JobConfig, progress: Progress, rows: int) -> tuple[Counts, float]:
    """Run the job as `streamdp run` does: CSV -> validate -> learn -> commit -> publish. Returns counts and seconds."""
    bar = progress.add_task(f"{config.job}, the job", total=rows)

    def show(state: JobProgress) -> None:
        progress.update(bar, completed=total(state.counts))

    source = config.source.build(config.build_schema())
    dead_letters = config.source.build_dead_letters()
    with Store(config.store_path, config.job, config.fingerprint(), config=config.text()) as store:
        estimator: Any = config.build_estimator(store.ledger)
        publisher = Publisher(config)
        runner = Runner(source, estimator, store, dead_letters=dead_letters, publish=[publisher], on_progress=show)
        started = time.perf_counter()
        counts = runner.run()
        seconds = time.perf_counter() - started
    source.close()
    if dead_letters is not None:
        dead_letters.close()
    return counts, seconds


def stream(config: JobConfig) -> list[Batch]:
    """The encoded records of the job, in blocks between measurements."""
    source, blocks = config.source.build(config.build_schema()), []
    for k in count():
        wanted, pieces = FIRST * 2 ** max(0, k - 1), 0
        while not source.finished and pieces < wanted:
            blocks.append(source.poll(wanted - pieces, 1.0))
            pieces += len(blocks[-1]) + len(blocks[-1].dead)
        if source.finished:
            break
    source.close()
    return blocks


def error_of(holdout: Holdout, estimator: Any) -> float:
    """The share misclassified, or the mean absolute error; NaN while nothing is learned."""
    found = holdout.measure(estimator)
    if found is None:
        return np.nan
    return float(1 - found["accuracy"] if "accuracy" in found else found["mean_absolute_error"])


def learned(config: JobConfig, holdout: Holdout, blocks: list[Batch], advance: Any) -> np.ndarray:
    """The errors (draws, measurements) of the job's model over the stream, with other noise in each draw."""
    out = np.empty((DRAWS, len(blocks)))
    for draw in out:
        estimator: Any = config.build_estimator(None)
        for i, block in enumerate(blocks):
            estimator.learn_encoded(block.X, block.y)
            if i == len(blocks) - 1:
                estimator.close_batch()
            draw[i] = error_of(holdout, estimator)
            advance(len(block))
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
    learner = SimpleNamespace(n_released=1)

    def __init__(self, config: JobConfig, blocks: list[Batch]) -> None:
        X, y = np.concatenate([b.X for b in blocks]), np.concatenate([b.y for b in blocks])
        classify = config.schema_.target.classes is not None
        self.loss = "logistic" if classify else "huber"
        self._model = fitted(X, y, classify)

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
    return float((december - float(stream.median())).abs().mean())  # type: ignore[arg-type]


def table_of(results: list[Result]) -> Table:
    """What each trust costs: the median error over the draws of noise, and the worst."""
    table = Table("who is trusted", title=f"errors in December: the median over {DRAWS} draws of noise (the worst)")
    for result in results:
        table.add_column(f"{result.config.job}: {result.error}", justify="right")
    usual = trust_of(results[0].config.model.estimator)
    for trust in get_args(Trust):
        last = [result.errors[trust][:, -1] for result in results]
        cells = [f"{np.median(errors):.4g} ({errors.max():.4g})" for errors in last]
        table.add_row(trust + " (default)" * (trust == usual), *cells)
    table.add_row("without privacy", *(f"{result.plain:.4g}" for result in results))
    table.add_row("best constant", *(f"{result.constant:.4g}" for result in results))
    return table


def report(console: Console, result: Result) -> None:
    """Print the weights of the job's model and its statement."""
    config, counts = result.config, result.counts
    console.rule(f"[bold]{config.job}, {config.model.budget}")
    model = committed(config.store_path)
    table = Table("weight", title="weights with 95 % intervals; * where 0 is outside")
    for column in ("estimate", "from", "to", ""):
        table.add_column(column, justify="right")
    shown = weights(model.estimator)
    for weight in shown:
        if weight.low is None or weight.high is None:
            table.add_row(weight.name, f"{weight.value:.4g}", "not settled", "", "")
        else:
            sure = "*" * (weight.low > 0 or weight.high < 0)
            table.add_row(weight.name, f"{weight.value:.4g}", f"{weight.low:.4g}", f"{weight.high:.4g}", sure)
    console.print(table)
    if (needed := unsettled(shown)) is not None:
        console.print(needed)
    console.print(brief(model.statement()), highlight=False)
    console.print(
        f"\n{total(counts):,} records in {result.seconds:.1f} s ({total(counts) / result.seconds:,.0f} a second): "
        f"{counts.learned:,} learned, {counts.refused:,} refused, {counts.dead_letters:,} dead letters (cancelled or "
        "diverted flights: they have no arrival)."
    )


def figure(path: Path, results: list[Result]) -> None:
    """Draw the errors on the holdout over the stream."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(1, len(results), figsize=(11, 4.5), layout="constrained")
    for axis, result in zip(axes, results, strict=True):
        for trust, errors in result.errors.items():
            known = np.isfinite(errors).all(axis=0)
            x, middle, color = result.records[known], np.median(errors[:, known], axis=0), COLORS[trust]
            axis.fill_between(x, errors[:, known].min(axis=0), errors[:, known].max(axis=0), color=color, alpha=0.2)
            axis.plot(x, middle, label=trust, color=color, marker="o", markersize=4 if len(x) > 1 else 9)
        axis.axhline(result.plain, color="tab:gray", ls="-", label="without privacy")
        axis.axhline(result.constant, color="black", ls="--", label="best constant")
        axis.set(
            title=f"{result.config.job}, {result.config.model.budget}",
            xscale="log",
            ylabel=f"{result.error}, in December",
        )
        axis.set(xlabel="records of the stream", ylim=(0, 1.5 * result.constant))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(title=f"who is trusted ({DRAWS} draws)", loc="upper right", ncols=2, fontsize="small")
    picture.savefig(path, dpi=150)


def main() -> None:
    console = Console()
    OUTPUT.mkdir(exist_ok=True)
    for old in OUTPUT.iterdir():  # a demo starts from nothing; a job would resume
        old.unlink()
    rows = datasets.write_flights_csv(OUTPUT / "train.csv", months=datasets.TRAINING_MONTHS)
    december = datasets.write_flights_csv(OUTPUT / "holdout.csv", months=datasets.HOLDOUT_MONTHS)
    console.print(f"{rows + december:,} departures from New York in 2013: {rows:,} as the stream, December to measure.")
    results = []
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for file, error in JOBS.items():
            config = load_config(HERE / file)
            holdout, blocks = Holdout(config), stream(config)
            counts, seconds = run(config, progress, rows)
            errors: dict[Trust, np.ndarray] = {}
            for trust in get_args(Trust):
                bar = progress.add_task(f"{config.job}, {trust}", total=DRAWS * sum(map(len, blocks)))
                job = load_config(HERE / file, [(("model", "trust"), trust)])
                errors[trust] = learned(job, holdout, blocks, lambda n, bar=bar: progress.advance(bar, n))
            records = np.cumsum([len(block) + len(block.dead) for block in blocks])
            plain = error_of(holdout, WithoutPrivacy(config, blocks))
            worst = constant(config)
            worst = worst if config.schema_.target.classes is None else 1 - worst
            results.append(Result(config, counts, seconds, error, records, errors, plain, worst))
    for result in results:
        report(console, result)
    console.print(table_of(results))
    figure(OUTPUT / "error.png", results)
    console.print(f"\nThe errors over the stream, from the best to the worst draw: {OUTPUT.name}/error.png.")
    console.print(
        "A bump after 100,000 records is a spell of other days, such as bad weather, that learners followed: see"
        " docs/explanations/change.md. What was committed:"
    )
    console.print(f"streamdp status {OUTPUT.name}/late.db, or weights, statement --full, predict.", highlight=False)


if __name__ == "__main__":
    main()
