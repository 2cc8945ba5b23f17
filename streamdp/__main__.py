"""`python -m streamdp`: the `streamdp` command."""

from streamdp.cli import main

main()
