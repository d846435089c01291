"""Filters of users and items, held-out and ranked users, and histories packed into batches."""
