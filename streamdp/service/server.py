"""Runs the application with uvicorn until SIGTERM or SIGINT."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI

from streamdp.config.job import NOTHING, Accepted, JobConfig
from streamdp.errors import ConfigError, StreamDPError, file_errors, place_of
from streamdp.runtime.signals import stopped_by_signals
from streamdp.runtime.tracing import traced
from streamdp.service.access import ENVIRONMENT, tokens_in
from streamdp.service.app import create_app
from streamdp.service.connections import KEEP_ALIVE_SECONDS, Acceptor, most_connections
from streamdp.service.guard import access_log

STOP_SECONDS = 6
"""How long open requests may take after the signal to stop. Then the learners stop: see `learning_job.STOP_S`."""
MOST_OF_A_MESSAGE = 10
"""How often the log has one message in a minute. Lines of calls are not counted."""
_MOST_MESSAGES = 1000
"""Different messages whose numbers are remembered."""
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
            most, config = most_connections(len(self._app.state.jobs)), self.config
            state = self.lifespan.state
            acceptor = Acceptor(
                self._listening, most, self.server_state, config.ssl, config=config, app_state=state, _loop=loop
            )
            self.servers.append(acceptor)  # type: ignore[arg-type]
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
    with file_errors(ConfigError, f"--host {host} --port {port}"):
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
        # Connections inherit it. Without it, an answer waits up to 40 ms for the acknowledgement of its own headers.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening


def _note_unexpected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the kind and the place of an error of the event loop. Its text, and a traceback, may quote a record."""
    error = context.get("exception")
    _log.error("unexpected %s at %s", type(error).__name__, place_of(error))


class Sparing(logging.Filter):
    """Lets a message pass `MOST_OF_A_MESSAGE` times in a minute, and then says how many were left out.

    Each call has its line in the access log: those all pass. The seconds of `clock` never go backward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a `record` of the log passes."""
        record.left_out = ""
        if record.name == access_log.name:
            return True
        now, message = self._clock(), record.getMessage()
        began, count = self._seen.get(message, (now, 0))
        if now >= began + 60.0:
            if count > MOST_OF_A_MESSAGE:
                record.left_out = f" ({count - MOST_OF_A_MESSAGE} more such messages were left out)"
            began, count = now, 0
        if len(self._seen) > _MOST_MESSAGES:
            self._seen.clear()
        self._seen[message] = began, count + 1
        return count < MOST_OF_A_MESSAGE


@contextlib.contextmanager
def _log_to_standard_error(level: str) -> Iterator[None]:
    """Log what the service, uvicorn and asyncio say. The last two say warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s%(left_out)s"))
    handler.addFilter(Sparing())
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
