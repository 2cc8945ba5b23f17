"""The same work in several threads at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

THREADS = 4


def in_threads(work: Callable[[], None]) -> None:
    """An error of one of them is raised."""
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work) for _ in range(THREADS)]:
            done.result()
