"""LDP-SGD and LDP-ASGD: noise on every record's gradient."""
