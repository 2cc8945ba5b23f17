"""One job's tables in an SQLite file or a PostgreSQL schema: locks, transactions, durable files."""
