"""The `streamdp` command."""
