"""What each user adds to the gradient of every parameter: recorded, measured, clipped and summed.

    tape            runs every use of a parameter by its rule, in one forward and backward pass
    alone           users one by one, by plain autograd, where the tape has no rule or cannot tell whose rows are whose
    vmapped         users by torch.vmap, where it can run them: several times faster than one by one
    operations      the rules: what an operation adds to a user's gradient
    layouts         whose row of the batch each row of a tensor is
    calls           caches, by a call's signature, whether a rule applies and the result's layout
    uses            shared by tape and rules: tensors computed from parameters alone (expression), look-ups (look_up),
                    which operations have a rule (registry), a batch's tensors and the batch of some users (batches),
                    and refusals of low precision (low_precision, arithmetic)
    contributions   the forms in which a user's part of a gradient is kept
    norms           each user's norm over all parameters and uses
    clipping        the factor of each user, and the sums; row_sum is the sum of a table by its rows
    joint           several parameters at once, to save GPU launches
    parameters      what is trained, and the padding rows that never change
    intercept       an identity that passes its gradient to a callback

Your own rule is a function decorated with `rule`, which uses the names here. Put it into a module that is imported
before training, such as the model's.
"""

from dprec.gradients import operations  # enters the rules of the package before any other
from dprec.gradients.contributions import Aligned, Contribution, Dense, LookUp, Outer, Rows, SharedRows
from dprec.gradients.uses.arguments import at_least_float32, by_user, marked, named
from dprec.gradients.uses.registry import rule

__all__ = [
    "Aligned",
    "Contribution",
    "Dense",
    "LookUp",
    "Outer",
    "Rows",
    "SharedRows",
    "at_least_float32",
    "by_user",
    "marked",
    "named",
    "operations",
    "rule",
]
