"""Runs the application with uvicorn until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI

from streamdp.config.job import NOTHING, Accepted, JobConfig
from streamdp.errors import ConfigError, StreamDPError
from streamdp.runtime.signals import stopped_by_signals
from streamdp.runtime.tracing import traced
from streamdp.service.access import ENVIRONMENT, tokens_in
from streamdp.service.app import create_app
from streamdp.service.connections import AT_ONCE, HEAD_SECONDS, KEEP_ALIVE_SECONDS, Connection, most_connections
from streamdp.service.problems import place_of

BACKLOG = 2048
"""Connections that wait to be accepted."""
STOP_SECONDS = 6
"""How long open requests may take after the signal to stop. Then the learners stop: see `learning_job.STOP_S`."""
_SWITCH_S = 0.001
"""How long a learner may keep the interpreter while a request waits for it; Python's default is 5 ms."""

_log = logging.getLogger("streamdp.service.server")


class Server(uvicorn.Server):
    """Serves an application on a `listening` socket. `tls_cert` and `tls_key` are PEM files; None: no TLS.

    Raises `ConfigError` if the files are no certificate and key.
    """

    def __init__(
        self, app: FastAPI, listening: socket.socket, tls_cert: str | None = None, tls_key: str | None = None
    ) -> None:
        name, port = listening.getsockname()[:2]
        self.address = f"{'https' if tls_cert else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"
        self._app, self._listening = app, listening
        config = uvicorn.Config(
            app,
            http="h11",
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            ws="none",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError):
            raise ConfigError("--tls-cert, --tls-key: expected PEM files with a certificate and its key") from None
        super().__init__(config)

    def serve_until_stopped(self) -> None:
        """Serve until `stop` or a signal. Raises the error that kept the application from starting."""
        self.run(sockets=[])
        if self._app.state.failure is not None:
            raise self._app.state.failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As `uvicorn.Server.startup`; then the address is printed on standard output."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note_unexpected)
        await super().startup(sockets)
        if self.started:
            given = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
            most, waiting = most_connections(len(self._app.state.jobs)), dict[Connection, None]()
            seconds = None if self.config.ssl is None else HEAD_SECONDS
            server = await loop.create_server(
                lambda: Connection(most, waiting, **given),
                sock=self._listening,
                backlog=AT_ONCE,
                ssl=self.config.ssl,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
            self._listening.listen(BACKLOG)
            self.servers.append(server)
        if self._app.state.failure is not None:
            self.should_exit = True
        elif self.started:
            print(self.address, flush=True)

    def stop(self) -> None:
        """Stop accepting, end streams of events, commit, answer, and return. Any thread may call it."""
        self._app.state.stop()
        self.should_exit = True

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Stop on SIGINT and SIGTERM. uvicorn would raise the signal again at its end."""
        return stopped_by_signals(self.stop, lambda: self.should_exit)


def serve(
    configs: Sequence[JobConfig],
    host: str,
    port: int,
    *,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    accepted: Accepted = NOTHING,
    unusable: Mapping[str, StreamDPError],
    log_level: str = "INFO",
    trace: bool = False,
) -> None:
    """Serve jobs until SIGTERM or SIGINT.

    `host`, `port`, `tls_cert`, `tls_key`, `log_level` and `trace` are those of `streamdp serve`. The address is printed
    on standard output when requests are answered. See `create_app` for `unusable`. Raises `ConfigError` for settings
    that contradict each other, an address that cannot be used, and files that are no certificate; and the errors of the
    jobs' stores.
    """
    sys.setswitchinterval(_SWITCH_S)
    with _log_to_standard_error(log_level), traced(trace):
        app = create_app(configs, tokens_in(os.environ.get(ENVIRONMENT, "")), accepted=accepted, unusable=unusable)
        app.state.access.check_host(host)
        with listen(host, port) as listening:
            Server(app, listening, tls_cert, tls_key).serve_until_stopped()


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens on `host` and `port` (0: any free port). Raises `ConfigError` if it cannot."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # Connections inherit it. Without it, an answer waits up to 40 ms for the acknowledgement of its own headers.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        reason = (error.strerror or "not an address").lower()
        raise ConfigError(f"--host {host} --port {port}: {reason}") from None


def _note_unexpected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the kind and the place of an error of the event loop. Its text, and a traceback, may quote a record."""
    error = context.get("exception")
    _log.error("unexpected %s at %s", type(error).__name__, place_of(error))


@contextlib.contextmanager
def _log_to_standard_error(level: str) -> Iterator[None]:
    """Log what the service, uvicorn and asyncio say. The last two say warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    levels = {"streamdp.service": level, "uvicorn": "WARNING", "asyncio": "WARNING"}
    before = {name: ((logger := logging.getLogger(name)).level, logger.propagate) for name in levels}
    try:
        for name, chosen in levels.items():
            logger = logging.getLogger(name)
            logger.addHandler(handler)
            logger.setLevel(chosen)
            logger.propagate = False
        yield
    finally:
        for name, (was, propagate) in before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(handler)
            logger.setLevel(was)
            logger.propagate = propagate
