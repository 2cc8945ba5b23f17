"""Several files as one source, in order."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from connectors.recordfile import RecordFile
from streamdp.data.records import Batch, Position, Source, check_poll
from streamdp.errors import SourceError


class FileList(Source):
    """Files that are read one after another, each opened by `build`.

    A position is {"file": how many files were read to their end, "rows": their rows, "names": a digest of their names
    and that of the present one, "inside": the position in the present one}. New files may be added after the present
    one. The row of a record is counted over all files. There is at least one of `paths`. Raises the errors of `build`
    for the first file; those of another file are raised when it is reached.
    """

    def __init__(self, paths: Sequence[str], build: Callable[[str], RecordFile]) -> None:
        self._paths = list(paths)
        self._build = build
        self._key: bytes | None = None
        self._done, self._rows = 0, 0
        self._unended: list[str] = []
        self._file = build(self._paths[0])

    def recognise(self, key: bytes) -> None:
        """See `RecordFile.recognise`: for each file."""
        self._key = key
        self._file.recognise(key)

    @property
    def position(self) -> Position:
        names = self._names(self._done)
        return {"file": self._done, "rows": self._rows, "names": names, "inside": self._file.position}

    @property
    def share(self) -> float | None:
        """The share of the files that was read, as if all were of one size; None if that is unknown."""
        inside = self._file.share
        return None if inside is None else (self._done + inside) / len(self._paths)

    @property
    def unended(self) -> list[str]:
        """The files that were polled up to a last line without its end; that line of all but the last is passed."""
        return self._unended + self._file.unended

    @property
    def finished(self) -> bool:
        """Whether the last file was read to its end."""
        return self._file.finished and self._done == len(self._paths) - 1

    def poll(self, max_records: int, timeout_s: float) -> Batch:
        """As `Source.poll`; a batch has records of one file."""
        check_poll(max_records, timeout_s)
        while self._file.finished and not self.finished:
            following = self._open(self._done + 1)
            self._unended += self._file.unended
            self._file.close()
            self._rows += int(self._file.position["row"])
            self._done, self._file = self._done + 1, following
        batch = self._file.poll(max_records, timeout_s)
        dead = [replace(letter, position=letter.position + self._rows) for letter in batch.dead]
        return replace(batch, positions=batch.positions + self._rows, position=self.position, dead=dead)

    def seek(self, position: Position) -> None:
        """See `records.Source.seek`. Raises `SourceError` if the files so far are not those of the position."""
        done, rows, inside = position.get("file"), position.get("rows"), position.get("inside")
        if not (isinstance(done, int) and isinstance(rows, int) and isinstance(inside, dict)):
            raise SourceError(
                "expected the position of several files, got that of one file; give that file, or start a new job"
            )
        if done >= len(self._paths) or position.get("names") != self._names(done):
            raise SourceError(
                f"the first {done + 1} files have other names than those this job has read so far; new files must come"
                " after them in the order of names. Give the original files, or start a new job."
            )
        self._file.close()
        self._file = self._open(done)
        self._done, self._rows = done, rows
        self._unended = [name for name in self._unended if name in self._paths[:done]]
        self._file.seek(inside)

    def close(self) -> None:
        """Stop. Safe to call twice."""
        self._file.close()

    def _open(self, which: int) -> RecordFile:
        file = self._build(self._paths[which])
        if self._key is not None:
            file.recognise(self._key)
        return file

    def _names(self, done: int) -> str:
        names = "\0".join(os.path.basename(path) for path in self._paths[: done + 1])
        return blake2b(names.encode(errors="surrogateescape"), digest_size=8).hexdigest()
