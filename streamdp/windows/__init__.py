"""Central multi-pass methods that learn from one window of users, whom the operator sees for as long as it lasts."""
