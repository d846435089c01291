"""The privacy cost of a run: how users are drawn, the ledger, its ε, and the plan that keeps a budget.

sampling           how users are drawn, read from the sampler; the events of steps are made from it
plan               δ, σ and the releases of a run, fixed before its first step; a resumed run must not change them
budget             the σ that keeps a budget, or the number of steps that it allows
ledger             records every use of private data as an event
composition        ε of a ledger
release            sums over all users before training: clipped, noised, recorded
selection          draws the places that most users name, with Gumbel noise, and computes the cost
repeated           the cost of choosing the best of a random number of runs
private_catalogue  chooses the items that a run may publish
terms              what a run provides to its model
"""
