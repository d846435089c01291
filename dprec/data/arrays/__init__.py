"""Flat arrays as long as a log: their stable orders, and files that are mapped into memory."""
