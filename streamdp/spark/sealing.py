"""Results of executors on their way to the driver: encrypted, so that only the driver's memory can open them.

Spark may keep what a task returns, and may run a task twice: two draws of noise for one record would be two releases.
So each attempt of a batch has a fresh pair of keys, and the driver opens one result of each shard. Every other one is
a ciphertext that nobody can open: record 8 of docs/decisions has the argument. The sealed box is that of
libsodium (X25519, XSalsa20 and Poly1305), by the package PyNaCl.
"""

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from streamdp.errors import SourceError


class Seal:
    """The keys of one attempt of a batch. It is never pickled."""

    def __init__(self) -> None:
        private = PrivateKey.generate()
        self._box = SealedBox(private)
        self.public = bytes(private.public_key)  # for `seal`, 32 bytes; it opens nothing

    def open(self, sealed: bytes) -> bytes:
        """Return what was `sealed` for this attempt. Raises `SourceError` for anything else."""
        try:
            return self._box.decrypt(sealed)
        except (CryptoError, ValueError, TypeError):
            raise SourceError("a result of an executor was changed on its way, or is of another attempt") from None

    def __reduce__(self) -> str:
        raise TypeError("the private key of a batch stays in the memory of the driver")


def seal(content: bytes, public: bytes) -> bytes:
    """Return a ciphertext of `content` that only the driver can open; `public` is `Seal.public`."""
    return SealedBox(PublicKey(public)).encrypt(content)
