"""A run that checks itself while it trains."""
