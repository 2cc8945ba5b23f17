"""Losses, domains, step sizes, compiled loops; smoothing, accelerated descent, confidence intervals, planning."""
