"""A private run: its plan, its steps on a model, its guarantee. `dprec.training` drives it.

    run                settings, plan, ledger and their part of a checkpoint; stops before the budget is exceeded
    steps              what each step does: refuse, check, record, add noise
    private_gradient   the gradient of one batch: clipped for each user, summed, noise added, divided. Noise is added
                       here, also to the rows that a strategy chose; a `NoiseSchedule` adds its own as the optimizer
                       steps
    cores              divides a step's users among the cores of a CPU
    user_losses        one loss per user
    guarantee          the sentence that states the guarantee

For a given ε, `accounting/plan` chooses σ and δ from how users are drawn. `accounting/ledger` records what was spent;
`accounting/composition` computes its ε.
"""
