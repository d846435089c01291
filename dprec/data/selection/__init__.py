"""Which users and items count: filters, held-out and ranked users, and histories packed into batches."""
