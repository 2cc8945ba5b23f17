"""What talks to a service over HTTP: the client of a program."""

from streamdp.client.calls import Client

__all__ = ["Client"]
