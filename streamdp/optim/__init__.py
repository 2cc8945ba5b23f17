"""Losses, domains, step sizes, compiled loops; smoothing, accelerated descent, planning."""
