"""The privacy cost of a run: the law of the draws, the ledger, its ε, and the plan that keeps a budget.

sampling           the law of the draws, read off the sampler: the only way to an event
plan               δ, σ and the releases of a run, fixed before its first step; a resumed run must not change them
budget             the σ that keeps a budget, or the number of steps that it allows
ledger             what has happened: every use of private data is an event
composition        ε of a ledger
release            sums over all users before training: clipped, noised, recorded
selection          which places most users name, drawn with Gumbel noise, and what that costs
repeated           the price of the best of a random number of runs
private_catalogue  which items a run may name at all
terms              what a model may ask of its run
"""
