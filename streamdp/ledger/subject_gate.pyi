from collections.abc import Callable
from threading import RLock

import numpy as np

from streamdp.ledger.memory_rows import MemoryRows
from streamdp.ledger.rows import CapNumbers
from streamdp.optim.record_kernel import RecordGate
from streamdp.privacy.release import Release

class SubjectGate(RecordGate):
    def __init__(
        self,
        account: MemoryRows,
        lock: RLock,
        begin: Callable[[], object],
        terms: np.ndarray,
        cap: CapNumbers,
        release: Release | None,
    ) -> None: ...
