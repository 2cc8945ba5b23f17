"""What is shown of committed models: snapshots, published files, holdout measures, predictions for a CSV stream."""
