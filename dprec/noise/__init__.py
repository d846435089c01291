"""The sources of noise."""
