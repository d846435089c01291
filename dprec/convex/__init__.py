"""Private learning for records whose gradients have few entries: the error hardly depends on the dimension.

After Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially private optimization with sparse gradients" (2024).
Neighbouring data sets differ by one record replaced by another.
"""

from dprec.convex.mean import PrivateMean, private_mean
from dprec.convex.output_perturbation import OutputPerturbation
from dprec.convex.sgd import BiasReducedSGD

__all__ = ["BiasReducedSGD", "OutputPerturbation", "PrivateMean", "private_mean"]
