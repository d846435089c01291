"""Datasets by name: real ones found on disk, generated ones, and stand-ins for those that are missing.

To add one, write how its files become a log, and enter its name in `source`.
"""
