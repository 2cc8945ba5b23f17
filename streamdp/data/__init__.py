"""Records and sources as protocols, the declared public schema, encoding, and demonstration data sets."""
