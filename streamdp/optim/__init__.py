"""Losses, domains, steps, and the compiled loops that learn; smoothing, accelerated descent, inference, planning."""
