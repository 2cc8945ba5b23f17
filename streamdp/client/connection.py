"""The client of a service, whose address, token and times are checked before the first call."""

import re
import threading
from typing import Any

import httpx

from streamdp.errors import ConfigError, check_texts, is_number


def connect(url: str, token: str | None, timeout_s: Any, proxy: str | None = None, **times: Any) -> httpx.Client:
    """Make the client of a service, for paths below `/v1/models`.

    `proxy` is the address of the proxy through which it is reached. None: no proxy.

    Raises `ConfigError` unless `url` can be its address, `token` its token, which is not shown, and `proxy` a proxy,
    and `timeout_s` and other `times` are seconds that can be waited for; messages have their names.
    """
    check_texts(url=url, token=token or "", proxy=proxy or "")
    if not _is_address(url):
        raise ConfigError("url: expected the address of a service, such as https://learn.example.org")
    if proxy is not None and not _is_address(proxy):
        raise ConfigError("proxy: expected the address of a proxy, such as http://proxy.example.org:3128")
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise ConfigError("token: expected ASCII text without blanks and line ends, such as one at the end of a file")
    for name, value in (times | {"timeout_s": timeout_s}).items():
        if not (is_number(value) and 0 <= value <= threading.TIMEOUT_MAX):
            raise ConfigError(f"{name}: expected a number of seconds, at least 0, got {value!r}")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # No proxy and no password of the environment: records and the token go to the address that was given.
    trusted = httpx.create_ssl_context()
    base = url.rstrip("/") + "/v1/models"
    return httpx.Client(base_url=base, headers=headers, timeout=timeout_s, verify=trusted, trust_env=False, proxy=proxy)


def _is_address(url: str) -> bool:
    try:
        return httpx.URL(url).scheme in ("http", "https")
    except httpx.InvalidURL:
        return False
