"""`streamdp serve`: the HTTP service of any number of jobs."""

from typing import Annotated, Literal

import typer

from streamdp.cli.app import app
from streamdp.cli.common import AcceptBudget, AcceptLoss, NewModel, Trace, say
from streamdp.errors import ConfigError, needing


@app.command(epilog="Example: streamdp serve service.yaml --port 8000")
def serve(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB.YAML", help="One or more jobs.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 8000,
    tls_cert: Annotated[str | None, typer.Option(help="The certificate, a PEM file.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="The key of the certificate, a PEM file.")] = None,
    accept_budget: AcceptBudget = False,
    accept_loss: AcceptLoss = False,
    new_model: NewModel = False,
    log_level: Annotated[
        Literal["info", "warning", "error"],
        typer.Option(help="What standard error shows: info has every call, error has failures only."),
    ] = "info",
    trace: Trace = False,
) -> None:
    """Serve models over HTTP, and learn from requests.

    Of the jobs, those with a source of type http learn, and those with one of type
    mixer shuffle the reports of another service's job.

    Without tokens, only a loopback address is served. SIGTERM and SIGINT: stop accepting, commit, answer, and exit.
    """
    from streamdp.config.http import CallsConfig
    from streamdp.config.job import Accepted, load_config
    from streamdp.config.prospect import cheaper
    from streamdp.runtime.signals import ended_by_sigterm

    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together")
    configs, unusable = [], {}
    for path in jobs:
        try:
            configs.append(load_config(path))
        except ConfigError as error:
            unusable[path] = error
    if not configs:
        raise next(iter(unusable.values()))
    with needing("streamdp serve", "service"):
        from streamdp.service.server import serve as run
    for config in configs:
        takes_records = isinstance(config.source, CallsConfig) and config.shuffled is None
        if takes_records and (sentence := cheaper(config)) is not None:
            say(f"job {config.job}: {sentence}; this is about records that callers send, not about reports")
    with ended_by_sigterm():
        run(
            configs,
            host,
            port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            accepted=Accepted(accept_budget, accept_loss, new_model),
            unusable=unusable,
            log_level=log_level.upper(),
            trace=trace,
        )
