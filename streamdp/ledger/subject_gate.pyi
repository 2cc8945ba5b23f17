from collections.abc import Callable
from threading import RLock

import numpy as np

from streamdp.ledger.memory_rows import MemoryRows
from streamdp.ledger.rows import CapNumbers

class SubjectGate:
    def __init__(
        self, account: MemoryRows, lock: RLock, begin: Callable[[], object], terms: np.ndarray, cap: CapNumbers
    ) -> None: ...
