"""How a committed model is shown: snapshots, published files, holdout measures, predictions for a CSV file."""
