"""What can be said of a card: which kernels compile for it, what they move and compute, and how they run on one."""
