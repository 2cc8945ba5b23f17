"""Job configurations: parsing and validation of `job.yaml`, and the objects that it describes."""
