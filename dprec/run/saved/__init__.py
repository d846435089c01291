"""What a run leaves on disk: its folder and lock, checkpoints, whom to trust, and how it goes on."""
