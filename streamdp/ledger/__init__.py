"""The spends of subjects and the caps on them: admission, the cache of rows, and how spends are stored."""
