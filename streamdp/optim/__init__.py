"""Losses, domains, step sizes and the compiled loops; smoothing, accelerated descent, confidence intervals, planning."""
