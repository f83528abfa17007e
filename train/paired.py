# SPDX-License-Identifier: Apache-2.0
"""The paired two-sided t-test, and what a claim comes to."""

import math

# Less than this share of the perplexity is noise: rows that differ by less are not ordered.
NOISE = 1.01
LEVEL = 0.05
HOLDS, REVERSED, UNDECIDED = "holds", "reversed", "undecided"


def incomplete_beta(a, b, x):
    """The regularized I_x(a, b), by its continued fraction (Lentz)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
                     + a * math.log(x) + b * math.log1p(-x)) / a
    tiny, c = 1e-300, 1.0
    d = 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 500):
        for numerator in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                          -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 + numerator * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + numerator / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return front * value


def t_test(differences):
    """p that the mean of paired differences is 0; None for fewer than two."""
    n = len(differences)
    if n < 2:
        return None
    mean = math.fsum(differences) / n
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    if variance == 0:
        return 1.0 if mean == 0 else 0.0
    t = mean / math.sqrt(variance / n)
    return incomplete_beta((n - 1) / 2, 0.5, (n - 1) / (n - 1 + t * t))


def verdict(difference, p, ratio=1.0, equal=False, within=False):
    """Of a claim that one side is better than the other by `ratio` of the perplexity (1: by more
    than noise); with `equal` that they differ by less; with `within` that the first is less far
    behind, and better by any amount. difference: of the losses in nats, the other's less the first's.
    """
    sure = p is not None and p < LEVEL
    if equal or within:
        if -math.log(ratio) < difference and (within or difference < math.log(ratio)):
            return HOLDS
        return REVERSED if sure else UNDECIDED
    if sure and difference > math.log(max(ratio, NOISE)):
        return HOLDS
    if sure and difference < -math.log(NOISE):
        return REVERSED
    return UNDECIDED


def together(verdicts):
    """Of a claim's pairs; None is a pair that was not measured."""
    if REVERSED in verdicts:
        return REVERSED
    return HOLDS if verdicts and all(v == HOLDS for v in verdicts) else UNDECIDED
