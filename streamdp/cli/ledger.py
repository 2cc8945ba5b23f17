"""The commands of `streamdp ledger`, about a ledger that several jobs share. No output names a subject."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from streamdp.cli.common import AsJSON, need_stdin
from streamdp.errors import ConfigError

ledger_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="A ledger that several jobs share: one cap over all of them."
)
Place = Annotated[str, typer.Argument(metavar="LEDGER", help="people.db or postgresql://HOST/DATABASE.")]


@ledger_app.command(epilog="Example: streamdp ledger status people.db")
def status(ledger: Place, as_json: AsJSON = False) -> None:
    """What each job has charged, and how many people are near their caps."""
    from datetime import UTC, datetime

    from streamdp.ledger.report import SHARES, ledger_status

    def at(seconds: float) -> str:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else "never"

    found = ledger_status(ledger)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"shares": SHARES}, indent=2))
        return
    (cap, since), *earlier = reversed(found.caps)
    typer.echo(f"cap:     {cap} since {at(since)}")
    for before, start in earlier:
        typer.echo(f"         {before} since {at(start)}")
    if found.older is None:
        typer.echo(f"people:  {found.people:,}, of whom {found.own_caps:,} have a cap of their own")
    else:
        typer.echo(f"people:  {found.people:,} in the present period; {found.own_caps:,} have a total of their own")
        typer.echo(f"         {found.older:,} rows of people in other periods are kept")
    low = 0.0
    for high, people in zip(SHARES, found.spent, strict=True):
        share = f"{'up to' if low == 0 else f'{low:.0%} to'} {high:.0%}"
        typer.echo(f"         {people:,} spent {share} of their cap{'' if found.older is None else ' of the period'}")
        low = high
    for job in found.jobs:
        sums = {"epsilon": job.epsilon, "delta": job.delta, "mu^2": job.mu_squared}
        said = ", ".join(f"{name} {value:.6g}" for name, value in sums.items() if value) or "nothing"
        typer.echo(f"job {job.job}: {job.records:,} records charged, in sum {said}; last {at(job.charged_at)}")
        for shard, (seq, position) in job.shards.items():
            typer.echo(f"         {shard}: commit {seq:,}, position {position or 'none'}")


@ledger_app.command("set-cap", epilog="Example: echo N14228 | streamdp ledger set-cap people.db eps=50")
def set_cap(
    ledger: Place,
    cap: Annotated[str, typer.Argument(help="The new cap, such as eps=8. For subjects also `none`: the ledger's cap.")],
    subjects: Annotated[
        bool, typer.Option("--subjects", help="The cap is for the subjects on standard input, one on each line.")
    ] = False,
) -> None:
    """Change the cap of all people, or of those on standard input. Subjects are never arguments, which others can see.

    When the cap of all changes, running jobs stop at their last commit: change the cap of each job, too.
    """
    from streamdp.ledger.shared_database import SharedDatabase

    own: Any = None if cap == "none" else cap
    if own is None and not subjects:
        raise ConfigError("a ledger needs a cap; `none` is for --subjects")
    people: list[str] = []
    if subjects:
        need_stdin()
        people = [person for line in sys.stdin.read().split("\n") if (person := line.removesuffix("\r"))]
    database = SharedDatabase(ledger)
    try:
        if subjects:
            database.set_caps(dict.fromkeys(people, own))
        else:
            database.set_cap(own)
    finally:
        database.close()
    typer.echo(f"{len(people):,} people have the cap {cap}" if subjects else f"the cap is {cap}")


@ledger_app.command(epilog="Example: streamdp ledger export people.db > spends.csv")
def export(ledger: Place) -> None:
    """Write what each person has spent over all jobs as CSV, with keyed hashes in place of subjects."""
    from streamdp.ledger.report import export_rows

    csv.writer(sys.stdout, lineterminator="\n").writerows(export_rows(ledger))
