"""Who takes part in a step, how long a run is, and the batch that a model gets."""
