"""What training minimises: a loss is called with a model and a batch and returns a sum and a count.

A loss of one's own is any such callable; with `@register("loss", "mine")` it can be named in configurations.
"""

from messagenet.losses.crf import Likelihood, Piecewise, PseudoLikelihood
from messagenet.losses.cross_entropy import CrossEntropy, Loss, LossSum, MemberCrossEntropy, marginal_cross_entropy

__all__ = [
    "CrossEntropy",
    "Likelihood",
    "Loss",
    "LossSum",
    "MemberCrossEntropy",
    "Piecewise",
    "PseudoLikelihood",
    "marginal_cross_entropy",
]
