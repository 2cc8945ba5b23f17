"""Who has spent how much, against which cap: admission, the cache of rows, and how spends are stored."""
