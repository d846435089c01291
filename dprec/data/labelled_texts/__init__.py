"""Texts with labels: columns, tokens, the log of all of them, micro-batches, and generated texts."""
