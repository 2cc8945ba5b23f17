"""What may be said from released numbers: intervals, change, moderation, doubts. Post-processing: it spends nothing."""
