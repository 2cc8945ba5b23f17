"""The checksum of a snapshot: stores of earlier versions have it, so its bytes stay."""

from __future__ import annotations

import json
from hashlib import blake2b

from hypothesis import example, given
from hypothesis import strategies as st

from streamdp.store.snapshot_codec import NAMES, _checksum

TEXTS = st.text(st.characters(max_codepoint=127)) | st.text(st.characters(codec="utf-8"))


def of_earlier_versions(job: str, fingerprint: str, columns: dict[str, object], state: str) -> bytes:
    content = json.dumps([job, fingerprint, *(columns[name] for name in NAMES), state])
    return blake2b(content.encode("utf-8"), digest_size=32, person=b"streamdp-snapsho").digest()


@given(TEXTS, TEXTS)
@example("j", '{"a":"b\\u00e9"}')
@example("j", "".join(map(chr, range(128))))
def test_the_checksum_is_that_of_earlier_versions(job: str, state: str) -> None:
    columns: dict[str, object] = dict.fromkeys(NAMES, 1.5) | {"position": '{"offset": 1}'}
    assert _checksum(job, "f", columns, state) == of_earlier_versions(job, "f", columns, state)
