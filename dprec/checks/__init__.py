"""Refusals, before the first step and at each: batches that are not the draw, updates without the private gradient.

`checks` looks at the model, the data and the training; `verify` compares users' gradients with plain autograd.

What a model, its data or its training may not do, and which file refuses it:

    mix users in an operation such as batch_norm              gradients/tape; gradients/alone handles others
    let other users change a user's gradient otherwise        verify/self_check, at the first steps and random ones
    keep something of users that changes later gradients      verify/self_check
    declare that it mixes users, or have hooks of Opacus      bypass
    write to a parameter or a buffer within a step            state
    update a parameter by a gradient that is not private      bypass
    take a step without the private gradient, or two          training/step_order
    give a batch that is not what the sampler drew            loading
    have no row of its own for a drawn user, or two           loading
    let a user's rows of a table depend on other users        sparsity/rows: choosing, counts
    use a whole table that has a strategy                     sparsity/rows/table_strategies
    take more than one optimizer or gradient a step           training/refusals
    run a backward pass of its own, or change gradients       gradients/tape, bypass
    compute in less precision than the guarantee states       gradients/uses/low_precision, arithmetic
    change what Lightning's trainer does with a step          training/refusals, run/trainer; with several devices
                                                              distributed/replicas
    change it from a script                                   training: step_order, refusals

Handled, not refused: `entropy` finds the generators of masks and reseeds them; `training/callback` keeps what is not
private out of checkpoints. `same_draws` gives two passes of `verify` the same random numbers.
"""
