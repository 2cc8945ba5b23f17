"""The notes of a device: what it agreed to, and each report that it made, written before the report is sent."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from streamdp.database.durable import write_durably
from streamdp.database.file_lock import FileLock
from streamdp.errors import SourceError, check_path, closed_on_error, file_errors

_FORMAT = 1


class ReportNotes:
    """The agreements and the reports of a device, in a file that is locked for as long as this object is open.

    It holds noisy reports only, and no record. The file at `path` need not exist. None: memory only, for a device that
    reports once. Raises `ConfigError` for anything else, `StoreBusyError` if another process or object has the file,
    `StoreError` if the lock cannot be made, and `SourceError` if the file cannot be read.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else os.path.realpath(check_path("notes", path))  # one lock
        self._lock = None if self._path is None else FileLock(self._path)
        self._held: dict[str, dict[str, object]] = {"agreements": {}, "reports": {}}
        with closed_on_error(self):
            self._read()

    def _read(self) -> None:
        if self._path is None:
            return
        with file_errors(SourceError, self._path):
            try:
                text = Path(self._path).read_text(encoding="utf-8")
            except FileNotFoundError:
                return
        found = None
        with contextlib.suppress(ValueError):
            found = json.loads(text)
        tables = found.get("tables") if isinstance(found, dict) and found.get("format") == _FORMAT else None
        if not isinstance(tables, dict) or tables.keys() != self._held.keys():
            raise SourceError(f"{self._path}: expected the notes of a device, got something else")
        self._held = tables

    def get(self, table: str, key: str) -> Any:
        """Return the note of this `key` in a `table`, "agreements" or "reports", or None."""
        return self._held[table].get(key)

    def set(self, table: str, key: str, value: object) -> None:
        """Write a JSON `value` durably as the note of a `key` in a `table`, or raise `SourceError`."""
        tables = self._held | {table: self._held[table] | {key: value}}
        if self._path is not None:
            with file_errors(SourceError, self._path):
                write_durably(self._path, json.dumps({"format": _FORMAT, "tables": tables}))
        self._held = tables

    def close(self) -> None:
        """Unlock the file. Idempotent."""
        if self._lock is not None:
            self._lock.release()
