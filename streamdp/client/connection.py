"""The client of a service, whose address, token and times are checked before the first call."""

from __future__ import annotations

import re
import threading
from typing import Any

import httpx

from streamdp.errors import ConfigError, check_texts, is_number


def connect(url: str, token: str | None, timeout_s: Any, **times: Any) -> httpx.Client:
    """Make the client of a service, for paths below `/v1/models`.

    Raises `ConfigError` unless `url` can be its address and `token` its token, which is not shown, and `timeout_s` and
    other `times` are seconds that can be waited for; messages have their names.
    """
    check_texts(url=url, token=token or "")
    try:
        known = httpx.URL(url).scheme in ("http", "https")
    except httpx.InvalidURL:
        known = False
    if not known:
        raise ConfigError("url: expected the address of a service, such as https://learn.example.org")
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise ConfigError("token: expected ASCII text without blanks and line ends, such as one at the end of a file")
    for name, value in (times | {"timeout_s": timeout_s}).items():
        if not (is_number(value) and 0 <= value <= threading.TIMEOUT_MAX):
            raise ConfigError(f"{name}: expected a number of seconds, at least 0, got {value!r}")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # No proxy and no password of the environment: records and the token go to the address that was given.
    trusted = httpx.create_ssl_context()
    base = url.rstrip("/") + "/v1/models"
    return httpx.Client(base_url=base, headers=headers, timeout=timeout_s, verify=trusted, trust_env=False)
