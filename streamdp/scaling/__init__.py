"""The units in which columns and targets are learned: the affine map, what is asked to find it, and what follows."""
