"""What `streamdp --version` prints, apart so that it loads nothing else."""

from streamdp import __version__


def print_version() -> None:
    """Print name and version, at once."""
    print(f"streamdp {__version__}", flush=True)
