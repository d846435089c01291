"""A private run: its plan, its steps on a model, its sentence. `dprec.training` has who drives it.

    run                settings, plan, ledger, and what a checkpoint holds of them; stops before the budget is passed
    steps              the order of each step: refused, checked, recorded, noised
    private_gradient   the gradient of one batch: clipped for each user, summed, noise added, divided. Noise is added
                       here, also to the rows that a strategy chose; a `NoiseSchedule` adds its own as the optimizer
                       steps
    cores              the cores of a CPU that each take a share of a step's users
    user_losses        one loss per user, as a run asks for them
    guarantee          the sentence

A run's ε is given; `accounting/plan` decides σ and δ for it, from the law of the draws. What ε has been spent is in
`accounting/ledger`, computed by `accounting/composition`.
"""
