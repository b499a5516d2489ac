"""From checkpoints, or from nothing, to packages."""
