"""Ways to release a mean privately: mechanisms, what they need, their error, and what they promise."""
