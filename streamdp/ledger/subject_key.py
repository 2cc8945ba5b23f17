"""The secret key of the hashes of subjects, and where it is stored.

Subjects are names, addresses or account numbers: there are few of them and they can be guessed. With hashes without a
key, an attacker who has the database could hash every candidate and see which of them took part, and how often. With a
key of 256 random bits, the database alone confirms no guess. Therefore the key is stored beside the database and never
in it. Copy or back up the database without `<path>.key`, or give the key by the environment and store it on no disk.
"""

import os
import secrets
from hashlib import blake2b

import numpy as np

from streamdp.database.durable import write_durably
from streamdp.errors import ConfigError, StoreError, StoreMismatchError, file_errors
from streamdp.system import is_trusted

ENVIRONMENT = "STREAMDP_SUBJECT_KEY"
"""The environment variable with the key, in hexadecimal."""

KEY_BYTES = 32
"""The length of a new key, and the least length of any."""


def period_of(keys: np.ndarray) -> np.ndarray:
    """Return the numbers of periods, (n,) int64, in keys (n, 2) that `subjects.hash_people` made with periods."""
    return (keys[:, 1] >> np.uint64(32)).astype(np.uint32).byteswap().astype(np.int64)


def key_fingerprint(key: bytes) -> bytes:
    """Return what a database stores of its key: enough to refuse another key, not enough to hash a subject."""
    return blake2b(digest_size=16, key=key, person=b"streamdp-key-id").digest()


def source_key(key: bytes) -> bytes:
    """Return a key for digests of a source's records, from which the subject key cannot be computed."""
    return blake2b(digest_size=32, key=key, person=b"streamdp-source").digest()


def check_key(key: bytes) -> bytes:
    """Return the key. Raises `ConfigError` unless it has 32 to 64 bytes; 64 is the limit of BLAKE2b."""
    if not isinstance(key, bytes) or not KEY_BYTES <= len(key) <= 64:
        raise ConfigError("the subject key must be 32 to 64 secret random bytes")
    return key


def given_key(path: str | None, key: bytes | None) -> bytes | None:
    """Return the key from the argument, else from the environment, else from the file at `path`; None if there is none.

    Raises `ConfigError` for a malformed key, and `StoreError` if the file cannot be read or others can read it.
    """
    if key is not None:
        return check_key(key)
    text = os.environ.get(ENVIRONMENT)
    try:
        if text is not None:
            return check_key(bytes.fromhex(text))
        if path is None:
            return None
        with open(path, "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            return check_key(bytes.fromhex(file.read().decode("ascii")))
    except FileNotFoundError:
        return None
    except ValueError:
        source = ENVIRONMENT if text is not None else path
        raise ConfigError(f"{source} must hold a subject key: 32 to 64 random bytes as hexadecimal") from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None


def _check_owner(path: str, found: os.stat_result) -> None:
    """Raise `StoreError` if another user may know the key, or may have given it."""
    if found.st_mode & 0o077:
        raise StoreError(f"other users can read {path} or write to it: set its mode to 600")
    if not is_trusted(found.st_uid):
        raise StoreError(f"{path} belongs to another user: expected this user or root")


def make_key(path: str | None) -> bytes:
    """Draw a random key and write it to a file that only its owner can read; it is on disk when this returns.

    The file is whole or absent after a crash. An existing key is never replaced. Raises `ConfigError` if `path` is
    None, so that there is no place for a key, and `StoreError` if the file exists or cannot be written.
    """
    if path is None:
        raise ConfigError(
            f"a cap needs a subject key, and a server has no place for one: set {ENVIRONMENT} to 64 random"
            " hexadecimal digits, the same for every worker, and keep them"
        )
    key = secrets.token_bytes(KEY_BYTES)
    with file_errors(StoreError, f"cannot write {path}"):
        write_durably(path, key.hex(), replace=False)
    return key


def matching_key(name: str, path: str | None, found: bytes | None, fingerprint: bytes | None) -> bytes:
    """Return the found key if it is the key of the database. With another key, each subject would get a new budget.

    `name` and `path` are those of the database and of its key file, `found` is what `given_key` returned, and
    `fingerprint` is in the database. Raises `StoreMismatchError` if the key is missing or is another one.
    """
    if found is None:
        restore = "" if path is None else f"restore {path} or "
        raise StoreMismatchError(f"the subject key of {name} is missing: {restore}set {ENVIRONMENT}")
    if key_fingerprint(found) != fingerprint:
        raise StoreMismatchError(f"this is not the subject key of {name}; give the key that it was created with")
    return found
