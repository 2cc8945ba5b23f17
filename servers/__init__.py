"""Real servers for tests, demos and `make kafka`: Apache Kafka and PostgreSQL. Not part of the installed package."""
