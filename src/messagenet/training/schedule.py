"""The learning rate of every step: a straight rise, then the "poly" fall (Chen et al., DeepLab, arXiv 1606.00915).

    factor(t) = (t + 1) / w                       t < w, the warm-up
    factor(t) = (1 − (t − w) / (T − w))^power     t ≥ w, of T steps; w is at most half of them

A function of the step alone, so nothing has to be remembered to resume it.
"""

from __future__ import annotations


def poly_factor(step: int, total: int, warmup: int = 0, power: float = 0.9) -> float:
    """What the largest learning rate is multiplied with at a step from 0 to total − 1.

    >>> [round(poly_factor(step, total=8, warmup=2, power=1.0), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.83, 0.67, 0.5, 0.33, 0.17]
    """
    warmup = min(warmup, total // 2)
    if step < warmup:
        return (step + 1) / warmup
    return float((1 - (step - warmup) / (total - warmup)) ** power)
