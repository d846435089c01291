"""Datasets by name: real ones found on disk, generated ones, and stand-ins for those that are missing."""
