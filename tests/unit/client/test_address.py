"""Clients refuse what is no address of a service, and show no token."""

from typing import Any

import pytest

from streamdp.client import Client, Device
from streamdp.errors import ConfigError

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "url", [None, 5, b"http://x", "", "x", "//x", "ftp://x", "http://[::1", "http://x\0", "\ud800"]
)
def test_an_address_is_that_of_a_service(url: Any) -> None:
    for make in (lambda: Client(url), lambda: Device(url, "job")):
        with pytest.raises(ConfigError, match="url: expected"):
            make()


@pytest.mark.parametrize("token", [5, b"secret", "secret\ud800", "secr\u00e9t", "secret\0"])
def test_a_token_is_text_and_not_shown(token: Any) -> None:
    for make in (lambda: Client(URL, token=token), lambda: Device(URL, "job", token=token)):
        with pytest.raises(ConfigError, match="token: expected") as caught:
            make()
        assert "secr" not in str(caught.value)


@pytest.mark.parametrize("job", [None, 5, b"late", "\ud800"])
def test_a_job_is_named_by_text(job: Any) -> None:
    with pytest.raises(ConfigError, match="job: expected"):
        Device(URL, job)
