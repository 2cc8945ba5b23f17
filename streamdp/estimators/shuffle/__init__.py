"""Shuffle-private SGD and AC-SA: a shuffler between the people and the learner."""
