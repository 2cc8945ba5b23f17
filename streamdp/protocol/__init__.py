"""The messages of devices: local reports, and the shuffle protocol with its three parties (see docs)."""
