"""Networks that sequence models share: causal attention, and Re-Attention in it; encoders from elsewhere."""
