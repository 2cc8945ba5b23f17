"""Private sums and means of vectors: shuffled sums, local means of users, private ranges, concentrated means."""
