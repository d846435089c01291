"""The learner, which is the base of every model, its optimizers, and the state that checkpoints keep."""
