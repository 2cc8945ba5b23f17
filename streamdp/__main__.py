"""`python -m streamdp`: the `streamdp` command."""

from streamdp.cli.start import start

start()
