"""Private learning where every record's gradient has few entries: the error depends on those, hardly on the dimension.

After Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially private optimization with sparse gradients" (2024).
Neighbouring data sets differ by one record replaced by another.
"""

from dprec.convex.mean import PrivateMean, private_mean
from dprec.convex.output_perturbation import OutputPerturbation
from dprec.convex.sgd import BiasReducedSGD

__all__ = ["BiasReducedSGD", "OutputPerturbation", "PrivateMean", "private_mean"]
