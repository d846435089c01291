"""Whose row is this? Layouts of tensors, and what keeps or loses them."""
