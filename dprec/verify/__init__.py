"""Re-computation: at random steps a run computes again what it is about to release, and stops if it differs.

What can be told without computing a step again is refused by `checks`.

self_check    what is compared, and when the run stops; called as a `step_check`
one_share     one drawn user's share: by the engine, among others, and by in_double, which is the truth
recount       the engine's sum for some users, done again
noise_watch   whether noise has come, and as much as promised; late_noise for tables that get it after the gradient
spare_time    which steps are checked
drawn         the users of the step, and batches of some of them
generators    puts random generators back
"""
