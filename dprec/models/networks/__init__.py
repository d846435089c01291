"""Networks that sequence models share: causal attention, means of a history, and Re-Attention."""
