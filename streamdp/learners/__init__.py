"""How rows of numbers become a private model: one learner for each kind of trust, behind one interface."""
