"""Methods that learn from one window of users under a trusted operator."""
