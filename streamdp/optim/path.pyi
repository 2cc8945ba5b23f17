"""Types of `path`, which is compiled."""

from streamdp.optim.arrays import Arrays

def measure(arrays: Arrays) -> None: ...
