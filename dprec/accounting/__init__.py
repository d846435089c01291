"""What a run costs: the law of the draws, the ledger, ε of what is in it, and the plan that keeps a budget."""
