"""`python -m streamdp`: the `streamdp` command."""

from streamdp.cli.main import main

main()
