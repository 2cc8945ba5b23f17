"""The `streamdp` command: its options, messages and exit codes."""
