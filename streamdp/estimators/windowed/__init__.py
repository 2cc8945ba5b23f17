"""User-level learning by a trusted operator: windows of users."""
