"""What talks to a service over HTTP: the device of a person who reports."""

from streamdp.client.device import Device, Outcome

__all__ = ["Device", "Outcome"]
