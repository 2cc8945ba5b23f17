"""Files that appear whole or not at all: written under a draft name, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile

from streamdp.system import sync, sync_folder


def sync_directory(path: str) -> None:
    """Make the names in the directory of a file durable.

    Parameters
    ----------
    path
        A file, which need not exist. Its directory is flushed to disk.

    Raises `OSError` if the directory cannot be opened or flushed.
    """
    sync_folder(os.path.dirname(os.path.abspath(path)))


def write_durably(path: str, content: str | bytes, *, mode: int = 0o600, replace: bool = True) -> None:
    """Write a whole file: a reader finds the old content or the new one, and the new one is on disk on return.

    Parameters
    ----------
    path
        The file. A draft in the same directory takes its name when the draft is on disk.
    content
        Bytes, or text, which is written as UTF-8.
    mode
        The permissions of the file.
    replace
        Whether an existing file is replaced. If it is not, an existing file raises `FileExistsError`.

    Raises `OSError` if the file cannot be written; no draft is left behind.
    """
    folder, name = os.path.split(os.path.abspath(path))
    descriptor, draft = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.chmod(draft, mode)
            sync(file.fileno())
        if replace:
            os.replace(draft, path)
        else:
            os.link(draft, path)
            os.unlink(draft)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise
    sync_directory(path)
