"""Who has spent how much, and what that amounts to."""
