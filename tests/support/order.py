"""The order of tests, so that each server is started by few workers.

`--dist worksteal` gives each worker an equal part of the list, in order. A worker without tests takes the last ones of
another. So what needs a server stands at the head of one part, and is taken by others only at the end.
"""

import pytest

_SERVERS = ({"spark"}, {"broker", "broker_behind_proxy"}, {"postgres", "server_database", "browser"})


def in_parts(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The items in so many parts, each with the tests of some servers at its head, as `worksteal` cuts the list."""
    heads: list[list[pytest.Item]] = [[] for _ in range(workers)]
    others = []
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if getattr(getattr(item, "callspec", None), "params", {}).get("place") == "postgresql":
            names.add("postgres")
        kind = next((i for i, servers in enumerate(_SERVERS) if names & servers), None)
        (others if kind is None else heads[kind % workers]).append(item)
    out: list[pytest.Item] = []
    rest = iter(others)
    for part, head in enumerate(heads):
        size = (len(items) - len(out)) // (workers - part)
        out += head
        out += [item for _, item in zip(range(size - len(head)), rest, strict=False)]
    return out + list(rest)
