"""The loops that run a job: one source, or the shards of a group; progress, metrics, signals."""
