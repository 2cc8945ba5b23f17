"""The `streamdp` application; the modules of the commands add their commands to it."""

from typing import Annotated

import typer

from streamdp.cli.ledger import ledger_app
from streamdp.cli.shuffle import shuffle_app
from streamdp.cli.spark import spark_app
from streamdp.cli.version import print_version

_HELP = """Learn from a stream of personal records under differential privacy.

Begin with `streamdp init people.csv`: it writes job.yaml, with places to fill in. Then `streamdp check job.yaml` says
what does not fit, `streamdp run job.yaml` learns, and `streamdp weights` and `streamdp statement` show the model and
what it guarantees."""

_CODES = """Exit codes: 0 done, also if a window waits for more people, or stopped by SIGINT or SIGTERM after a commit;
1 standard output cannot be written (no message if its reader has ended, as with head; a run then stops at its last
commit), or an unexpected error; 2 wrong usage or configuration; 3 the source or its data, also if none of a run's
records fits the schema and its caps and budgets; 4 the store or the published file; 5 a record's budget; 6 not
available (yet); 130 interrupted before the run began, or interrupted twice. SIGTERM ends a run of a Kafka job within 30
seconds, also if the database does not answer (then with 4): the next run learns what was not committed. Errors are one
line on standard error and never show a value of a record.""".replace("\n", " ")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # loading rich takes half of the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help=_HELP,
    epilog=_CODES,
)

app.add_typer(ledger_app, name="ledger")
app.add_typer(shuffle_app, name="shuffle")
app.add_typer(spark_app, name="spark")


def _version(wanted: bool) -> None:
    if wanted:
        print_version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
