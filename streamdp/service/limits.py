"""The limits of a call."""

MAX_BODY_BYTES = 8 << 20
MOST_DISCARDED_BYTES = 8 * MAX_BODY_BYTES
"""How much of a body that is too large is read, and not kept, so that its sender gets the answer."""
MAX_RECORDS = 10_000
"""The most records or reports of a call."""
FEW_BYTES = 16_384
"""A body of at most so many bytes is read in the event loop; a thread of its own would take longer."""
BODY_SECONDS = 10.0
"""How long a body may take to arrive."""
