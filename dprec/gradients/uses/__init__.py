"""A use of a parameter: which rule runs it, whose rows it meets, and what is computed from parameters alone."""
