"""One run, from its settings to its folder: train, save, resume, evaluate, recommend."""
