"""Refusals, before the first step and at each: users who touch each other, ways round the private gradient.

`checks` looks at the model, the data and the training; `verify` computes a step again while the run goes on.

What a model, its data or its training may not do, and which file refuses it:

    mix users in an operation such as batch_norm              gradients/tape; of others gradients/alone takes care
    mix users where each is taken alone                       one_user, for the probe
    let other users move a user's gradient in any other way   probe, before the first step; verify/self_check later
    use a module that mixes users or rewrites its weights     bypass
    write to anything that it holds within a step             state; reachable says what it holds
    move a parameter by a gradient that is not private        bypass
    take a step without the private gradient, or two          bypass
    give a batch that is not what the sampler drew            loading
    have no row of its own for a drawn user, or two           loading
    let a user's rows of a table depend on other users        sparsity/rows: declared, counts
    use a table as a whole that a strategy rules              sparsity/rows/row_rules
    take more than one optimizer or gradient a step           models/learning/optimizers for a Learner; training:
                                                              lightning_checks, script_checks
    run a backward pass of its own, or change gradients       gradients/own_backward, bypass
    compute in less precision than the guarantee says         gradients/uses/low_precision, arithmetic
    change what Lightning's trainer does with a step          switches; training: other_callbacks, lightning_checks;
                                                              run/trainer; with several devices distributed/replicas
    change it from a script                                   training: step_order, between, script_checks

Not refused but taken care of: `entropy` reseeds the generators that masks are drawn from, and `training/saved` keeps
out of a checkpoint what is not private. `one_user` and `perturbed` help the probe; `same_draws` gives two passes the
same random numbers, `fixed_draws` random operations that do not hang on a batch's shape.
"""
