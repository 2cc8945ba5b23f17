from typing import TypeAlias

import numpy as np

_Pair: TypeAlias = tuple[np.ndarray, np.ndarray]
_Triple: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]

def count_rows(pages: np.ndarray, content: _Pair, sizes: np.ndarray) -> bool: ...
def unpack_rows(content: _Pair, sizes: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> None: ...
def pack_page(page: int, keys: np.ndarray, rows: np.ndarray, out: np.ndarray) -> int: ...
def pick_rows(
    group: _Triple, content: _Pair, sizes: np.ndarray, keys: np.ndarray, rows: np.ndarray, found: np.ndarray
) -> None: ...
def merge_rows(
    group: _Triple,
    content: _Pair,
    sizes: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    scratch: np.ndarray,
    out: np.ndarray,
    ends: np.ndarray,
) -> None: ...
