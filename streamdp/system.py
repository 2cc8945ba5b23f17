"""All that depends on the operating system: locks of files, what is on the disk, users, forks, random bytes.

Linux has all of it, and so has macOS. Windows has no locks that several readers share and that die with their process:
estimators, saved models and devices without notes work there; stores, ledgers in files and dead letters raise
`NotAvailableError`.
"""

import os
from collections.abc import Callable
from typing import Any

from streamdp.errors import NotAvailableError, StoreBusyError

fcntl: Any
try:
    import fcntl
except ImportError:
    fcntl = None
resource: Any
try:
    import resource
except ImportError:
    resource = None

NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""The flag with which `os.open` refuses a symbolic link."""


def check_locks() -> None:
    """Raise `NotAvailableError` if this system has no locks of files, before a file is made or opened."""
    if fcntl is None:
        raise NotAvailableError(
            "this system has no locks of files, so it can hold no store, no ledger in a file and no dead letters: use"
            " Linux or macOS, or an estimator without them"
        )


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file, `descriptor`, until `unlock`, until it is closed, or until the process dies.

    A lock that it has is replaced. A `shared` one allows other holders of shared locks. Unless it may `wait` for other
    holders, `BlockingIOError` is raised. Raises `NotAvailableError` if the system has no such locks.
    """
    check_locks()
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def unlock(descriptor: int) -> None:
    """Release the lock of the open file `descriptor`."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def sync(descriptor: int) -> None:
    """Flush the content of the open file `descriptor` to the disk. On macOS `os.fsync` would leave it in a cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(path: str) -> None:
    """Flush the names in the folder `path` to the disk. Raises `OSError` if it cannot be opened or flushed."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def most_open_files() -> int | None:
    """How many files and connections this process may have open; None where no such limit is known."""
    if resource is None:
        return None
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def fill_random(buffer: memoryview) -> None:
    """Fill a `buffer` with random bytes of the operating system. On Windows a copy stays in memory for a while.

    The caller overwrites it after use.
    """
    if os.name == "nt":
        buffer[:] = os.urandom(buffer.nbytes)
        return
    with open("/dev/urandom", "rb", buffering=0) as device:  # the bytes of os.urandom could not be overwritten
        if device.readinto(buffer) != buffer.nbytes:
            raise OSError("/dev/urandom returned too few bytes")


def is_trusted(owner: int) -> bool:
    """Whether the `owner` of a file, its `st_uid`, is this user or root. True where files have no such owner."""
    return not hasattr(os, "geteuid") or owner in (0, os.geteuid())


def after_fork(function: Callable[[], None]) -> None:
    """Call a `function` without arguments in every child of a fork of this process, where the system has forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def check_own(made: tuple[int, int], it: object, what: str) -> None:
    """Raise `StoreBusyError` in a fork, and for a copy: `it` would do everything once more.

    `made`: the process that made `what`, and its `id` there.
    """
    if (os.getpid(), id(it)) != made:
        raise StoreBusyError(f"{what} belongs to the process that opened it, and this is a fork of it, or a copy")


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
