"""Files that appear whole or not at all: written under a draft name, flushed to disk, then renamed."""

import contextlib
import errno
import os
import tempfile

from streamdp.system import sync, sync_folder


def sync_directory(path: str) -> None:
    """Flush the directory of a path, so that the names in it are durable; the file need not exist.

    Raises `OSError` if the directory cannot be opened or flushed.
    """
    sync_folder(os.path.dirname(os.path.abspath(path)))


def write_durably(path: str, content: str | bytes, *, mode: int = 0o600, replace: bool = True) -> None:
    """Write a whole file: a reader finds the old content or the new one, and the new one is on disk on return.

    A draft in the same directory takes the name of `path` when it is on disk. Text is written as UTF-8; `mode` has the
    permissions. Unless it may `replace` it, an existing file raises `FileExistsError`. What a symbolic link names is
    replaced, and not the link. Raises `OSError` if the file cannot be written, also if `path` is a device or a pipe,
    such as /dev/stdout, which a rename would delete; no draft is left behind.
    """
    path = os.path.realpath(path) if replace else path
    if replace and os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "not a regular file", path)
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
