"""User-level local learning: one noisy report on all records of a user."""
