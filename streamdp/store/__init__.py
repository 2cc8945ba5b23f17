"""State, position, counts and spends of a job, committed in one transaction."""
