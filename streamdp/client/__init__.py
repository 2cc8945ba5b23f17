"""What talks to a service over HTTP: the client of a program, and the device of a person who reports."""

from streamdp.client.calls import Client
from streamdp.client.device import Device, Outcome

__all__ = ["Client", "Device", "Outcome"]
