"""Embedding tables row by row: which rows a step may change, when they get their noise, and the strategies at work."""
