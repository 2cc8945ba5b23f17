"""The address of a service and the token for it, checked before the first call."""

from __future__ import annotations

import httpx

from streamdp.errors import ConfigError, check_texts


def check_address(url: str, token: str | None) -> None:
    """Raise `ConfigError` unless these can be the address of a service and its token. The token is not shown.

    Parameters
    ----------
    url
        The address.
    token
        The bearer token; None if there is none.
    """
    check_texts(url=url, token=token or "")
    try:
        known = httpx.URL(url).scheme in ("http", "https")
    except httpx.InvalidURL:
        known = False
    if not known:
        raise ConfigError("url: expected the address of a service, such as https://learn.example.org")
    if not (token or "").isascii():
        raise ConfigError("token: expected ASCII text")
