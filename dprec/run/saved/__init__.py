"""A run on disk: its folder and lock, checkpoints, trusted modules, resuming and continuing."""
