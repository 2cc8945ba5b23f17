"""`streamdp check`, `plan` and `schema`: what a job may be and what to expect, before it learns or spends anything."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli.app import app
from streamdp.cli.common import AsJSON, Settings, naming, need_clients, shown, warn_if_weak
from streamdp.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from streamdp.config.job import JobConfig
    from streamdp.config.prospect import Prospect
    from streamdp.data.inspection import Inspection

_SHOWN = 8
_NO_PLAN = (
    "There is no plan for this model; `streamdp plan` has those of LDP with huber, squared, logistic or quantile."
)
NOTE = "These counts are read from private records and are not private: they are for the operator only."


@app.command(epilog="Example: streamdp check late.yaml")
def check(
    job: Annotated[str, typer.Argument(metavar="JOB.YAML", help="The job.")],
    as_json: AsJSON = False,
    assignments: Settings = None,
) -> None:
    """Say what of a job's data fits, before anything is spent.

    It reads files and Redis streams whole, and of a topic some messages, without
    learning: what fits, what does not and why, and what to expect.

    Exit code 2: places are to be filled in, or a setting is wrong; 3: a run would
    stop, because no record fits, or more do not fit than source.max_bad_share.
    """
    from streamdp.cli.settings import assigned
    from streamdp.config.checking import admitted, stops
    from streamdp.config.job import load_config
    from streamdp.config.problems import WrongSettingsError

    try:
        config = load_config(job, assigned(assignments or ()))
    except WrongSettingsError as error:
        typer.echo(json.dumps({"problems": error.problems}, indent=2) if as_json else "\n".join(error.problems))
        raise typer.Exit(2) from None
    found = _inspected(config)
    problem, within = stops(config, found), admitted(config, found)
    report = _report(config, found, within, _planned(config, found, within), [] if problem is None else [problem])
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(report, config.has_model)
    if problem is not None:
        raise typer.Exit(3)


@app.command(epilog="Example: streamdp schema > job.schema.json")
def schema() -> None:
    """Print the JSON schema of a JOB.YAML, for editors."""
    from streamdp.config.job import JobConfig

    described = JobConfig.model_json_schema(by_alias=True)
    typer.echo(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | described, indent=2))


@app.command(epilog="Example: streamdp plan late.yaml --records 40000")
def plan(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB.YAML]", help="The job, which says loss, parameters and budget.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Without a job: the name of the loss.")] = None,
    d: Annotated[
        int | None,
        typer.Option(
            "--parameters",
            min=1,
            help="Without a job: how many weights. A number has one, a category one less than it has values.",
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Without a job: what a record may spend: eps=E, eps=E,delta=D or mu=M.")
    ] = None,
    error: Annotated[
        float | None, typer.Option(help="Without a job: the error to reach. Prints how many records it needs.")
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(min=1, help="The number of records, or people. Default: those of the job, or of its source."),
    ] = None,
    assignments: Settings = None,
) -> None:
    """How many records a model needs to beat a constant.

    The error is the distance of all weights, with scaled columns, from those of
    endless data; LDP learns them. A job is planned with its own estimator.
    """
    from streamdp.config.prospect import planned
    from streamdp.learners.alike import alike
    from streamdp.optim.planner import plan_records
    from streamdp.privacy.guarantees import parse_budget

    if job is not None:
        if any(given is not None for given in (loss, d, budget, error)):
            raise ConfigError("plan: a job says all: give --records and --set alone with it")
        _plan_of(job, records, assignments or ())
        return
    if loss is None or d is None or budget is None:
        raise ConfigError("plan: expected a JOB.YAML, or --loss, --parameters and --budget")
    if assignments:
        raise ConfigError("plan: --set changes a JOB.YAML: give one with it")
    try:
        spend = parse_budget(budget)
    except BudgetError as problem:
        raise ConfigError(f"--budget: {problem}") from None
    warn_if_weak(spend, records)
    if error is not None and records is None:
        typer.echo(f"{plan_records(loss, d, spend, error):,} records")
    elif records is not None and error is None:
        found = planned(loss, d, spend, records)
        typer.echo(f"error {found.error:.4g}\n{found.sentence}")
        if (raw := alike(loss, d, spend, records)) is not None:
            typer.echo(
                f"With raw records in this process, about {raw.process:,} teach as much with trust: process, and "
                f"{raw.window:,} with trust: window."
            )
    else:
        raise ConfigError("expected either --error, to print the number of records, or --records, to print the error")


def _plan_of(job: str, records: int | None, assignments: Sequence[str]) -> None:
    from streamdp.cli.settings import assigned
    from streamdp.config.checking import admitted, hopeless, readable
    from streamdp.config.job import load_config
    from streamdp.config.prospect import counts_people, prospect, shuffled

    config = load_config(job, assigned(assignments))
    if (records := records or (None if counts_people(config) else config.expected_records)) is not None:
        plan = prospect(config, records) if config.has_model else None
    elif readable(config):
        found = _inspected(config)
        if (problem := hopeless(found)) is not None:
            raise ConfigError(f"plan: {problem}")
        plan = _planned(config, found, within := admitted(config, found))
        people = _people(found.expected_of(1) if found.named else None, within)
        typer.echo(f"{found.expected:,} records of the source fit the schema.{people} {NOTE}")
    else:
        raise ConfigError(f"plan: the source cannot be counted beforehand: expected --records N for {job}")
    if plan is not None and plan.error is not None:
        typer.echo(f"error {plan.error:.4g}")
    typer.echo(_NO_PLAN if plan is None else plan.sentence)
    if records is not None and (more := shuffled(config, records)) is not None:
        typer.echo(more)


def _inspected(config: "JobConfig") -> "Inspection":
    from streamdp.config.checking import inspect
    from streamdp.config.kafka import KafkaSourceConfig

    if not isinstance(config.source, KafkaSourceConfig):
        return inspect(config)
    need_clients()
    with naming(config.source.servers):
        return inspect(config)


def _people(people: int | None, admitted: int | None) -> str:
    cap = "" if admitted is None else f", and the cap admits about {admitted:,} records of them"
    return "" if people is None else f" They are of about {people:,} people{cap}."


def _planned(config: "JobConfig", found: "Inspection", within: int | None) -> "Prospect | None":
    """The plan of a job for the records that were found, of which those `within` the cap are learned."""
    from streamdp.config.prospect import counts_people, prospect

    if not config.has_model:
        return None
    records = found.expected_of(1) if counts_people(config) else within or found.expected
    return prospect(config, records, found.shares())


def _report(
    config: "JobConfig", found: "Inspection", within: int | None, plan: "Prospect | None", problems: list[str]
) -> dict[str, object]:
    from streamdp.config.checking import between, come_again, few_workers, unbounded, unended
    from streamdp.privacy.guarantees import weakness
    from streamdp.serving.export import refusals

    weak = weakness(config.build_estimator().record_budget, config.expected_records or found.expected)
    dead = [
        {"reason": reason, "column": column, "records": count}
        for (reason, column), count in found.reasons.most_common()
    ]
    return {
        "note": NOTE,
        "job": config.job,
        "records": found.rows,
        "of": found.of,
        "fit": found.fit,
        "people": found.expected_of(1) if found.named else None,
        "admitted": within,
        "unfit": dead,
        "columns": {name: asdict(counts) for name, counts in found.columns_found.items()},
        "plan": None if plan is None else asdict(plan) | {"sentence": plan.sentence},
        "problems": problems,
        "warnings": [
            *([] if weak is None else [weak]),
            *unended(found.unended),
            *come_again(config, found),
            *few_workers(config, plan),
            *found.padded(),
            *unbounded(config, found),
            *between(config, found),
            *(refusals(config) if config.has_model else []),
            *found.identifying(),
            *([*found.warnings(), *found.never_seen()] if found.fit else []),
        ],
    }


def _print(report: dict[str, Any], has_model: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(NOTE)
    share = f" ({100 * report['fit'] / report['records']:.1f} %)" if report["records"] else ""
    more = "" if report["of"] in (None, report["records"]) else f" The topic has about {report['of']:,}."
    people = _people(report["people"], report["admitted"])
    console.print(f"\n{report['fit']:,} of {report['records']:,} records fit the schema{share}.{people}{more}")
    if report["unfit"]:
        table = Table("does not fit: reason", "column", "records", box=None, padding=(0, 2, 0, 0))
        for item in report["unfit"]:
            table.add_row(item["reason"].replace("_", " "), escape(item["column"] or ""), f"{item['records']:,}")
        console.print(table)
    if report["records"]:
        names = ("missing", "not declared", "outside the bounds")
        table = Table("\ncolumn", *("\n" + name for name in names), box=None, padding=(0, 2, 0, 0))
        for name, counts in report["columns"].items():
            cells = [counts["missing"], counts["unknown"], counts["outside"]]
            table.add_row(escape(name), *(f"{cell:,}" if cell else "-" for cell in cells))
        console.print(table)
        for name, counts in report["columns"].items():
            if counts["seen"]:
                console.print(escape(f"{name}: {_most(counts['seen'])}"), soft_wrap=True)
    console.print()
    if report["fit"] and has_model:
        console.print(_expectation(report["plan"]), soft_wrap=True)
    for kind in ("problems", "warnings"):
        for sentence in report[kind]:
            console.print(escape(f"{kind[:-1]}: {sentence}"), soft_wrap=True)


def _most(seen: dict[str, int]) -> str:
    most = sorted(seen.items(), key=lambda one: -one[1])
    more = f", and {len(most) - _SHOWN} more" if len(most) > _SHOWN else ""
    return ", ".join(f"{shown(name)} {count:,}" for name, count in most[:_SHOWN]) + more


def _expectation(plan: dict[str, object] | None) -> str:
    if plan is None:
        return _NO_PLAN
    sentence = str(plan["sentence"])
    if plan["error"] is None:
        return sentence
    return (
        f"Planned error of the weights: {plan['error']:.3g}, with {plan['columns']} columns and {plan['records']:,}"
        f" records of the planner's reference model. {sentence}"
    )
