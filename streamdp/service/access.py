"""Who may do what: bearer tokens with scopes, for one job or for all jobs."""

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import get_args

from streamdp.config.http import Scope, TokenConfig
from streamdp.errors import ConfigError
from streamdp.service.problems import ProblemError

ENVIRONMENT = "STREAMDP_TOKENS"
"""The variable with tokens for all jobs: `SHA256:SCOPE,SCOPE`, divided by semicolons."""

SCOPES: tuple[str, ...] = get_args(Scope)


def tokens_in(text: str) -> tuple[TokenConfig, ...]:
    """Read tokens, `SHA256:SCOPE,SCOPE;...`, from a `text`. Raises `ConfigError`, which does not show the text."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        digest, _, scopes = part.partition(":")
        try:
            found.append(TokenConfig.model_validate({"sha256": digest.lower(), "scopes": scopes.split(",")}))
        except ValueError:
            raise ConfigError(
                f"{ENVIRONMENT}: expected SHA256:SCOPE,SCOPE;... with the scopes {', '.join(SCOPES)}"
            ) from None
    return tuple(found)


@lru_cache(maxsize=16)
def is_loopback(host: str) -> bool:
    """Whether the address `host` is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Access:
    """The tokens of a service, and those of single jobs (`by_job`)."""

    def __init__(self, everywhere: Sequence[TokenConfig], by_job: Mapping[str, Sequence[TokenConfig]]) -> None:
        self._by_job = by_job
        self._tokens: list[tuple[str | None, TokenConfig]] = [(None, token) for token in everywhere]
        self._tokens += [(job, token) for job, tokens in by_job.items() for token in tokens]
        self._everywhere = bool(everywhere)
        self.open = not self._tokens
        """Whether there is no token at all, so that everybody on this machine may do everything."""

    def check_host(self, host: str) -> None:
        """Raise `ConfigError` if other machines reach `host` and a job may be used without a token."""
        unguarded = [job for job, tokens in self._by_job.items() if not tokens and not self._everywhere]
        if unguarded and not is_loopback(host):
            raise ConfigError(
                f"job {unguarded[0]!r} has no tokens, so --host must be a loopback address: add service.tokens to the "
                f"job, or set {ENVIRONMENT}"
            )

    def caller(self, authorization: str | None) -> str:
        """The digest of a token that `check` knows, from the header `authorization`; empty without tokens."""
        return "" if self.open else _digest(authorization)

    def check(self, authorization: str | None, job: str | None, *scopes: str) -> None:
        """Check the token of a request, in its header `authorization`, which needs one of the `scopes`.

        `job` is the job that is used; None for all. Raises `ProblemError` 401 without a known token and 403 if it does
        not allow this.
        """
        if self.open:
            return
        kind = (authorization or "").partition(" ")[0]
        digest = _digest(authorization)
        allowed: set[str] = set()
        known = False
        for owner, given in self._tokens:  # all are compared, each in constant time
            if hmac.compare_digest(given.sha256, digest):
                known = True
                if owner is None or owner == job:
                    allowed.update(given.scopes)
        if kind.lower() != "bearer" or not known:
            raise ProblemError(
                401,
                "token",
                "expected a known token: Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": 'Bearer realm="streamdp"'},
            )
        if not allowed & set(scopes):
            raise ProblemError(403, "scope", f"the token does not have the scope {' or '.join(scopes)} for this")


def _digest(authorization: str | None) -> str:
    token = (authorization or "").partition(" ")[2].strip()
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
