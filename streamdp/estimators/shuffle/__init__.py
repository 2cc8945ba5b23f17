"""Shuffle-private learning: a shuffler between the people and the learner."""
