"""The commands of `streamdp ledger`, about the ledger of a database of jobs. No output names a subject."""

import csv
import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from streamdp.cli.common import AcceptBudget, AsJSON, StorePath, moment, need_stdin, store_of
from streamdp.errors import ConfigError

ledger_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The ledger of a database: one cap over all its jobs."
)


@ledger_app.command(epilog="Example: streamdp ledger status people.db")
def status(store: StorePath, as_json: AsJSON = False) -> None:
    """What jobs have learned, and how near people are to caps."""
    from streamdp.store.report import SHARES, ledger_status

    found = ledger_status(store_of(store)[0])
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"shares": SHARES}, indent=2))
        return
    (cap, since), *earlier = reversed(found.caps)
    typer.echo(f"cap:     {cap} since {moment(since)}")
    for before, start in earlier:
        typer.echo(f"         {before} since {moment(start)}")
    if found.older is None:
        typer.echo(f"people:  {found.people:,}, {found.own_caps:,} of them with a cap of their own")
    else:
        typer.echo(f"people:  {found.people:,} in the present period; {found.own_caps:,} have a total of their own")
        typer.echo(f"         {found.older:,} rows of people in other periods are kept")
    low = 0.0
    for high, people in zip(SHARES, found.spent, strict=True):
        share = f"{'up to' if low == 0 else f'{low:.0%} to'} {high:.0%}"
        typer.echo(f"         {people:,} spent {share} of their cap{'' if found.older is None else ' of the period'}")
        low = high
    for job in found.jobs:
        said = f"{job.learned:,} records learned, {job.refused:,} refused, {job.left_out:,} left out"
        said += f", {job.dead_letters:,} do not fit"
        without = "" if job.capped else "; it has no cap, and the ledger knows nothing of its people"
        typer.echo(f"job {job.job}: {said}; last commit {moment(job.committed_at)}{without}")
        for shard, (seq, position) in job.shards.items():
            typer.echo(f"         {shard}: commit {seq:,}, position {position or 'none'}")


@ledger_app.command("set-cap", epilog="Example: echo N14228 | streamdp ledger set-cap people.db eps=2 --subjects")
def change_cap(
    store: StorePath,
    cap: Annotated[str, typer.Argument(help="The new cap, such as eps=8. For subjects also `none`: the cap of all.")],
    subjects: Annotated[
        bool, typer.Option("--subjects", help="The cap is for the subjects on standard input, one on each line.")
    ] = False,
    accept_budget: AcceptBudget = False,
) -> None:
    """Change the cap of all people, or of those on standard input. Subjects are never arguments, which others can see.

    When the cap of all changes, running jobs stop at their last commit: change the cap of each job, too.
    """
    from streamdp.store.operator import set_cap, set_caps

    if not subjects:
        if cap == "none":
            raise ConfigError("a database with capped jobs needs a cap; `none` is for --subjects")
        set_cap(store_of(store)[0], cap, accept=accept_budget)
        typer.echo(f"the cap is {cap}")
        return
    need_stdin()
    lines = sys.stdin.read().removeprefix("\ufeff").split("\n")  # editors of Windows begin a file with this mark
    people = [person for line in lines if (person := line.removesuffix("\r"))]
    caps = dict.fromkeys(people, None if cap == "none" else cap)
    unknown = set_caps(store_of(store)[0], caps, accept=accept_budget)
    hint = "" if not unknown else f"; {unknown:,} of them have no records here: is it how the job writes its subjects?"
    typer.echo(f"{len(caps):,} people have the cap {cap}{hint}")


@ledger_app.command(epilog="Example: streamdp ledger export people.db > spends.csv")
def export(store: StorePath) -> None:
    """Write what each person has spent, as CSV.

    It counts all jobs, and has keyed hashes in place of subjects.
    """
    from streamdp.store.report import export_rows

    csv.writer(sys.stdout, lineterminator="\n").writerows(export_rows(store_of(store)[0]))
