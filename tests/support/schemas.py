"""Databases of their own for tests that share a server."""


def in_schema(url: str, name: str) -> str:
    """The URL of a schema of a database: jobs in other schemas have nothing to do with those in it."""
    return f"{url}{'&' if '?' in url else '?'}schema={name}"
