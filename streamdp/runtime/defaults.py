"""Defaults that runner, worker and configuration share."""

COMMIT_RECORDS = 100_000
"""A commit costs milliseconds, most of them the disk's: one every 10,000 records would double the time of a file."""

COMMIT_SECONDS = 5.0

POLL_TIMEOUT_S = 0.2
"""The longest wait of one poll, in seconds: between two polls the loop looks at the clock and at the stop signals."""
