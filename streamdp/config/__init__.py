"""The job configuration: YAML in, validated settings out, and the source, schema and estimator that they describe."""
