"""The loops that run a job, over one source or over the shards of a group; progress, metrics and signals."""
