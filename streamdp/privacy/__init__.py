"""Budgets and guarantees, mechanisms and their samplers, randomness, amplification and statements."""
