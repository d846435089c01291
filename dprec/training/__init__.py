"""Drives a private run: from Lightning by `Privacy`, or from your own script by `private`.

callback            `Privacy`: passes Lightning's hooks to a private run; keeps what is not private out of checkpoints
automatic           private steps under Lightning's automatic optimization
script              `private`: a model, its optimizer and a loader or a data set, from a script
loaders             private loaders, of a data set with one item per user or of your own loader
step_order          the order of draw, gradient and optimizer's step, in scripts and in Lightning
refusals            features of Lightning and optimizers that do not fit one private update a step
"""
