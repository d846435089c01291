"""Samplers of users, the length of a run, and the batches that models get."""
