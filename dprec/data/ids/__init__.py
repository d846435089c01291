"""Ids of users, items and values: when two spellings are one, and how ids become numbers."""
