"""`streamdp plan`: how many records a model needs."""

from __future__ import annotations

from typing import Annotated

import typer

from streamdp.cli.app import app
from streamdp.errors import BudgetError, ConfigError


@app.command(epilog="Example: streamdp plan --loss logistic --parameters 5 --budget eps=1 --error 0.3")
def plan(
    loss: Annotated[str, typer.Option(help="The name of the loss.")],
    d: Annotated[
        int,
        typer.Option(
            "--parameters", min=1, help="How many weights: a number has one, a category one less than it has values."
        ),
    ],
    budget: Annotated[str, typer.Option(help="What a record may spend: eps=E, eps=E,delta=D or mu=M.")],
    error: Annotated[float | None, typer.Option(help="The error to reach: prints how many records it needs.")] = None,
    records: Annotated[
        int | None,
        typer.Option(min=1, help="The number of records: prints the error, and the chance to beat a constant."),
    ] = None,
) -> None:
    """How many records a model needs.

    The error is the distance of all weights, with scaled columns, from those of endless data; LDP learns them.
    """
    from streamdp.config.prospect import planned
    from streamdp.learners.alike import alike
    from streamdp.optim.planner import plan_records
    from streamdp.privacy.guarantees import parse_budget

    try:
        spend = parse_budget(budget)
    except BudgetError as problem:
        raise ConfigError(f"--budget: {problem}") from None
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
