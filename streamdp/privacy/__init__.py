"""Budgets, guarantees and their composition; mechanisms, samplers and randomness; statements."""
