"""What each user adds to the gradient of every parameter: recorded, measured, clipped and summed.

Here are the names for a rule of one's own.
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
