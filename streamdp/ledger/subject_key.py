"""The secret key under which subjects are hashed, and where it lives.

Subjects are names, addresses, account numbers: there are few of them and they can be guessed. An unkeyed hash
lets whoever steals the database hash every candidate and see who took part, and how often. Under a key of 256
random bits the database alone answers no such guess, which is why the key is kept beside it and never in it:
copy or back up the database without `<path>.key`, or give the key by the environment and keep it on no disk.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from streamdp.data.records import Subject, subject_bytes
from streamdp.database.durable import write_durably
from streamdp.errors import ConfigError, StoreError, StoreMismatchError

ENVIRONMENT = "STREAMDP_SUBJECT_KEY"
KEY_BYTES = 32


def hash_subjects(subjects: Sequence[Subject | None], key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Hashes (n, 2) as little-endian uint64, and who there is (n,): False for None, whose hash is any.

    16 bytes of BLAKE2b under `key`, for this use only (`person`). A str counts as its UTF-8 bytes. Raises `SchemaError`
    for anything but str, bytes or None.
    """
    there = np.array([subject is not None for subject in subjects], dtype=np.bool_)
    keyed = blake2b(digest_size=16, key=key, person=b"streamdp-subject")  # takes in the key once for all
    digests = []
    for subject in subjects:
        one = keyed.copy()
        one.update(subject_bytes(subject) or b"")
        digests.append(one.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64).reshape(-1, 2), there


def key_fingerprint(key: bytes) -> bytes:
    """What a database may know of its key: enough to refuse another one."""
    return blake2b(digest_size=16, key=key, person=b"streamdp-key-id").digest()


def check_key(key: bytes) -> bytes:
    """The key itself; raises `ConfigError` unless it has 32 to 64 bytes (64 is BLAKE2b's limit)."""
    if not isinstance(key, bytes) or not KEY_BYTES <= len(key) <= 64:
        raise ConfigError("the subject key must be 32 to 64 secret random bytes")
    return key


def given_key(path: str | None, key: bytes | None) -> bytes | None:
    """The key from the argument, else the environment, else the file; None where none of them has one."""
    if key is not None:
        return check_key(key)
    text = os.environ.get(ENVIRONMENT)
    try:
        if text is not None:
            return check_key(bytes.fromhex(text))
        if path is None:
            return None
        with open(path, "rb") as file:
            return check_key(bytes.fromhex(file.read().decode("ascii")))
    except FileNotFoundError:
        return None
    except ValueError:
        source = ENVIRONMENT if text is not None else path
        raise ConfigError(f"{source} must hold a subject key: 32 to 64 random bytes as hexadecimal") from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None


def make_key(path: str | None) -> bytes:
    """Draw a key and write it to the file, readable by the owner only, on disk before this returns.

    Written under another name and linked to its own, so that the name never holds half a key. Raises
    `StoreError` where it cannot be written, `ConfigError` where there is no place for one; an existing key is never
    replaced.
    """
    if path is None:
        raise ConfigError(
            f"a cap needs a subject key, and beside a server there is no place for one: set {ENVIRONMENT} to 64 random"
            " hexadecimal digits, the same for every worker, and keep them"
        )
    key = secrets.token_bytes(KEY_BYTES)
    try:
        write_durably(path, key.hex(), replace=False)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    return key


def matching_key(name: str, path: str | None, found: bytes | None, fingerprint: bytes | None) -> bytes:
    """The found key if it is the one with this fingerprint; raises `StoreMismatchError`.

    Under another key every subject would be a new one, with a new budget.
    """
    if found is None:
        restore = "" if path is None else f"restore {path} or "
        raise StoreMismatchError(f"the subject key of {name} is missing: {restore}set {ENVIRONMENT}")
    if key_fingerprint(found) != fingerprint:
        raise StoreMismatchError(f"this is not the subject key that {name} was made with; give the right one")
    return found
