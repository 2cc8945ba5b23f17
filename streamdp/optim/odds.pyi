"""Types of `odds`, which is compiled."""

from streamdp.optim.arrays import Arrays

def begin(arrays: Arrays) -> None: ...
