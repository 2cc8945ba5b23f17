"""Defaults that the runner, the worker and the configuration share."""

COMMIT_RECORDS = 100_000
"""A commit takes milliseconds, most of them for the disk; a commit every 10,000 records would double the time to learn
a file."""

BAD_SHARE = 0.05
"""The share of the first records of a job that may not fit its schema."""

COMMIT_SECONDS = 1.0
"""The longest time between two commits, in seconds, if at least one record came."""

NOTE_WAITING_S = 5.0
"""The least time between two notes, for readers of the store, of how many records an open batch or window holds."""

POLL_TIMEOUT_S = 0.2
"""The longest wait of one poll, in seconds. Between two polls the loop checks the clock and the stop signals."""

QUIET_POLL_TIMEOUT_S = 5.0
"""The longest wait of one poll in seconds, for a service while nothing waits for a commit: `close` ends the poll."""

REPORT_AFTER_S = 30.0
"""A worker that waits, for a shard or for the end of a call of the store, says so after this time in seconds, and then
every time it has passed again. Nor does it say the same of a source that fails again and again more often."""

FIRST_S = 10.0
"""How long a job holds the commits of others back, in seconds at most, to learn the records of a refused commit again.
A server ends its transaction only later (`ANSWER_TIMEOUT_MS`)."""

WATCH_S = 1.0
"""How often a worker asks its source what is not read, in seconds."""
