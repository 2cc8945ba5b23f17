"""A lock between processes on a file, which the kernel releases when the process dies."""

import os

from streamdp import system
from streamdp.errors import StoreBusyError, StoreError


class FileLock:
    """A lock on `<path>.lock`, held until `release` or until the process dies.

    The lock file is not removed on release. If it were, a third process could lock a new file of the same name while a
    second process holds the old one. The directory of the path must exist. Other holders that ask for a `shared` lock
    are allowed beside a shared one. `what` says what the lock protects, for messages; by default the path. Raises
    `StoreBusyError` if another holder has a lock that excludes this one, also within one process, and `StoreError` if
    the lock file cannot be created.
    """

    def __init__(self, path: str, shared: bool = False, what: str | None = None) -> None:
        system.check_locks()
        try:
            descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            cause = str(error.strerror).lower()
            cause += "; a run writes beside its store: give a store in a folder that this user may write"
            missing = isinstance(error, FileNotFoundError)
            raise StoreError(f"cannot create {path}.lock: {'make its folder first' if missing else cause}") from None
        self._file = os.fdopen(descriptor, "rb")  # if the lock object is garbage-collected, this closes and unlocks
        try:
            system.lock(self._file.fileno(), shared=shared, wait=False)
        except OSError:
            self.release()
            raise StoreBusyError(f"{what or path} is in use; stop the other process, or wait until it ends") from None

    def share(self) -> None:
        """Turn an exclusive lock into a shared one."""
        system.lock(self._file.fileno(), shared=True)

    def alone(self) -> bool:
        """Turn a shared lock into an exclusive one, unless others have it, too: then it may be lost."""
        try:
            system.lock(self._file.fileno(), wait=False)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Unlock. Idempotent."""
        self._file.close()
