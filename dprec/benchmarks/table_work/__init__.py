"""Steps on large tables in the middle of a long run, and where their time goes."""
