"""Audits a guarantee: trains with planted users, and measures what the model reveals about them."""
