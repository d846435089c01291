"""The self-check: compares what drawn users add to a step with plain float64 autograd of each user alone.

It checks the first steps and random ones, before a step is released. `checks` refuses what shows without computing a
step again.

self_check    chooses steps and users, for a share of the time, and stops the run
one_share     what a user adds, alone and among others: by in_double, the reference, and by the engine
recount       the engine's sum for some users
perturbed     moves weights for a while: a difference that then disappears is due to a kink of the loss
noise_watch   whether noise was added, and as much as promised; late_noise for tables that get it after the gradient
drawn_users   the users of the step, and batches of some of them
"""
