"""What every model is trained by: the learner, its optimizers, and the gradient that they follow."""
