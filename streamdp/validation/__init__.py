"""Private progressive validation: randomised answers about a model's error, and what follows from them."""
