"""Reads a log's events: its parts, their times and order, and the histories of its users, in memory or mapped."""
