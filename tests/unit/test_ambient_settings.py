"""Records and tokens go to the address that was given: no variable of the environment decides where."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.schemaregistry import SchemaRegistry
from connectors.sinks import Message, TableSink, WebhookSink
from streamdp.client import Client, Device
from streamdp.client.connection import connect
from streamdp.errors import StreamDPError
from streamdp.store.store import Store


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What a proxy receives that every variable names; it answers nothing."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, address)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(65_536))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield received
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


CALLS: dict[str, Callable[[str], object]] = {
    "client": lambda url: connect(url, "token", 5.0).get("/job"),
    "registry": lambda url: SchemaRegistry(url)(1),
    "webhook": lambda url: WebhookSink(url, {}).send(Message("job", 1, 1.0, b"1")),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_proxy_of_the_environment_gets_a_call(call: str, proxy: list[bytes]) -> None:
    with pytest.raises(Exception, match=r"refused|answer|reach"):
        CALLS[call](_closed())
    assert proxy == []


THROUGH: dict[str, Callable[[str, str], object]] = {
    "client": lambda url, through: Client(url, proxy=through, retry_s=0).weights("job"),
    "device": lambda url, through: Device(url, "job", proxy=through).report({}, 1),
    "registry": lambda url, through: SchemaRegistry(url, proxy=through)(1),
    "webhook": lambda url, through: WebhookSink(url, {}, through).send(Message("job", 1, 1.0, b"1")),
}


@pytest.mark.parametrize("call", THROUGH)
def test_a_proxy_that_is_set_gets_the_call(call: str, proxy: list[bytes]) -> None:
    with pytest.raises(Exception, match=r"answer|reach|disconnected"):
        THROUGH[call]("http://service.invalid", os.environ["HTTP_PROXY"])
    assert len(proxy) >= 1
    assert b" http://service.invalid/" in proxy[0]


POSTGRES: dict[str, Callable[[str], object]] = {
    "store": lambda url: Store.snapshots(url, "job"),
    "table": lambda url: TableSink(url, "models", None),
}


@pytest.mark.parametrize("call", POSTGRES)
def test_no_address_of_the_environment_gets_what_a_database_should(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[bool] = []
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("PGHOSTADDR", "127.0.0.2")

        def serve() -> None:
            with contextlib.suppress(OSError):
                other.accept()[0].close()
                connected.append(True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(StreamDPError):
            POSTGRES[call](f"postgresql://127.0.0.1:{port}/x")
        other.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert connected == []


def test_no_password_of_the_environment_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        connect(f"http://127.0.0.1:{server.getsockname()[1]}", None, 30.0).get("/job")
        thread.join()
    assert received
    assert b"authorization" not in received[0].lower()
