"""A file of dead letters, with each letter of a committed record once, also after crashes.

A job writes the letters of its records before it commits them, and commits with them how many lines the file had. A run
that continues after a crash reads the lines after that number. They may be letters of records that were not committed
and will be read again. A letter that equals such a line is not written a second time. Nothing is ever removed but the
unfinished last line of a writer that was killed, so that several jobs and workers of one machine may share a file.
"""

import base64
import contextlib
import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from streamdp import system
from streamdp.data.records import WHOLE, DeadLetter, Shard
from streamdp.errors import SourceError, check_path

_BLOCK_BYTES = 1 << 20


class DeadLetterFile:
    """Dead letters appended to a file as JSON lines: position, reason, column, and the payload (base64) if kept.

    Letters of a partition have its topic and number too. Letters are on the disk after `commit()`. Only the owner can
    read the file, because payloads are personal data. Raises `SourceError` if the file at `path` cannot be made or
    written, and if it is a symbolic link.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        system.check_locks()
        self.path = check_path("path", path)
        self.name = os.path.realpath(self.path)
        self._waiting: list[tuple[Shard, bytes]] = []
        self._waiting_bytes = 0
        self._found: dict[Shard, Counter[bytes]] = {}
        self._resumed: dict[Shard, int] = {}
        self._lines = self._size = 0
        self._durable = True
        self._reader: int | None = None  # a descriptor, if the file can be read again
        with self._errors():
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | system.NO_LINK, 0o600)
            try:
                if stat.S_ISREG(os.fstat(self._file).st_mode):
                    os.fchmod(self._file, 0o600)  # an older file may be open to others
                    self._reader = os.open(self.path, os.O_RDONLY | system.NO_LINK)
                    with self._alone():
                        self._count_lines()
            except BaseException:
                for descriptor in filter(None, (self._file, self._reader)):
                    os.close(descriptor)
                raise
        self._closed = False

    def write(self, letters: Sequence[DeadLetter], shard: Shard = WHOLE) -> None:
        """Append letters, unless `resume` has found them; they are on the disk after the next `commit()`, or before."""
        found = self._found.get(shard, Counter())
        for letter in letters:
            item = {"reason": letter.reason, "column": letter.column}
            if letter.payload is not None:
                item["payload"] = base64.b64encode(letter.payload).decode("ascii")
            line = _beginning(shard) + f"{letter.position}, {json.dumps(item)[1:]}".encode("ascii")
            if found[line] > 0:
                found[line] -= 1
            else:
                self._waiting.append((shard, line))
                self._waiting_bytes += len(line)
        if self._waiting_bytes > _BLOCK_BYTES:
            self._append(durable=False)

    def commit(self) -> int:
        """Write through to the disk. Returns how many lines the file has, as far as this object knows.

        While a shard has not come to all the letters that `resume` has found, it is the place after which they are: a
        commit before them must leave them for the next run to find.
        """
        self._append(durable=True)
        return min([self._lines, *(place for shard, place in self._resumed.items() if self._found[shard].total())])

    def resume(self, places: Mapping[Shard, int | None]) -> None:
        """Go back to the last commit: discard what was not appended, and find what was appended after it.

        `places` is what `commit` returned before the last commit of each shard; None if it is unknown.
        """
        self._waiting = [(shard, line) for shard, line in self._waiting if shard not in places]
        self._found |= {shard: Counter() for shard in places}
        self._resumed |= {shard: place or 0 for shard, place in places.items()}
        if self._reader is None:
            return
        ours = {_beginning(shard): (self._found[shard], self._resumed[shard]) for shard in places}
        with self._errors(), self._alone():
            self._count_lines()
            for number, line in enumerate(self._read(0)):
                for beginning, (found, place) in ours.items():
                    if number >= place and line.startswith(beginning):
                        found[line.rstrip(b"\n")] += 1

    def close(self) -> None:
        """Commit and close. Safe to call twice."""
        if not self._closed:
            try:
                self.commit()
            finally:
                self._closed = True
                os.close(self._file)
                if self._reader is not None:
                    os.close(self._reader)

    def _append(self, *, durable: bool) -> None:
        """Append the letters that wait, in whole lines or not at all."""
        data = b"".join(line + b"\n" for _, line in self._waiting)
        with self._errors():
            if data:
                self._durable = False
                with self._alone():
                    self._count_lines()
                    try:
                        self._write_all(data)
                    except BaseException:
                        if self._reader is not None:
                            os.ftruncate(self._file, self._size)  # a full disk took a part of it
                        raise
                    self._size += len(data)
                    self._lines += len(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
            if durable and not self._durable and self._reader is not None:
                system.sync(self._file)
                self._durable = True

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _count_lines(self) -> None:
        """Count the lines of others since the last call, and remove the unfinished line of a killed writer."""
        if self._reader is None:
            return
        if os.fstat(self._file).st_size < self._size:  # another process has truncated it
            self._lines = self._size = 0
        for line in self._read(self._size):
            whole = line.endswith(b"\n")
            if not whole and any(line.startswith(start[: len(line)]) for start in _BEGINNINGS):
                os.ftruncate(self._file, self._size)
                break
            self._lines += 1
            self._size += len(line)
            if not whole:  # of another process
                self._write_all(b"\n")
                self._size += 1
                break

    def _read(self, start: int) -> Iterator[bytes]:
        assert self._reader is not None
        with open(self._reader, "rb", closefd=False) as file:  # a buffer that was kept could hold what is gone
            file.seek(start)
            yield from file

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock that all writers of the file take for an append."""
        system.lock(self._file)
        try:
            yield
        finally:
            system.unlock(self._file)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or type(error).__name__
            raise SourceError(f"cannot write dead letters to {self.path}: {reason}") from None


def _beginning(shard: Shard) -> bytes:
    """How a line of this shard begins, up to the position."""
    where = "" if shard == WHOLE else f'"topic": {json.dumps(shard.topic)}, "partition": {shard.partition}, '
    return f'{{{where}"position": '.encode("ascii")


_BEGINNINGS = (b'{"position": ', b'{"topic": ')
