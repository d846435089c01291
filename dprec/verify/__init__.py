"""The check: does a drawn user add what plain float64 autograd gives for that user alone, and nobody else?

It looks at the first steps and at random ones, before a step is released. What can be told without computing a step
again is refused by `checks`.

self_check    which users of which steps are looked at, for what share of the time, and when the run stops
one_share     what a user adds, alone and among others: by in_double, which is the truth, and by the engine
recount       what the engine adds up for some users
perturbed     moves weights for a while: a difference that goes away with it is a kink's
noise_watch   whether noise has come, and as much as promised; late_noise for tables that get it after the gradient
drawn_users   the users of the step, and batches of some of them
"""
