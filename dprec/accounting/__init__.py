"""The privacy cost of a run: the law of the draws, the ledger, its ε, and the plan that keeps a budget."""
