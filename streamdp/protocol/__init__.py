"""The shuffle protocol: devices, shuffler and learner in processes of their own; see docs/shuffle_protocol.md."""
