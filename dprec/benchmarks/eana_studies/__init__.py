"""The parts of `bench eana`: bounds, trained systems, and a log with three features of context."""
