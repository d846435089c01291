"""Who drives a private run: Lightning through `Privacy`, or a script of one's own through `private`.

callback            `Privacy`: Lightning's hooks, handed to a private run; keeps what is not private out of checkpoints
automatic           a LightningModule that leaves its step to Lightning
script              `private`: a model, its optimizer and a loader or a data set, from a script
loaders             whose draws can be accounted for, of any data set with one item per user; or your own loader's
step_order          what may be done between a draw and its step, in a script and in Lightning
refusals            what one private gradient a step has no place for
"""
