"""The address of a service and the token for it, checked before the first call."""

from __future__ import annotations

import re
import threading
from typing import Any

import httpx

from streamdp.errors import ConfigError, check_texts, is_number


def check_address(url: str, token: str | None) -> None:
    """Raise `ConfigError` unless `url` can be the address of a service and `token` its token, which is not shown."""
    check_texts(url=url, token=token or "")
    try:
        known = httpx.URL(url).scheme in ("http", "https")
    except httpx.InvalidURL:
        known = False
    if not known:
        raise ConfigError("url: expected the address of a service, such as https://learn.example.org")
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise ConfigError("token: expected ASCII text without blanks and line ends, such as one at the end of a file")


def check_seconds(**times: Any) -> None:
    """Raise `ConfigError` unless all `times` are in seconds and can be waited for; messages have their names."""
    for name, value in times.items():
        if not (is_number(value) and 0 <= value <= threading.TIMEOUT_MAX):
            raise ConfigError(f"{name}: expected a number of seconds, at least 0, got {value!r}")
