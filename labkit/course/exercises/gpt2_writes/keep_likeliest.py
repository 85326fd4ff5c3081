"""From a blank page: temperature and top-k

A sampler's first half, in NumPy. Keep the `k` largest logits (if several are equal to the smallest of these, keep any
of them), divide them by the temperature, and turn them into probabilities with a softmax. All other tokens get 0.
Return an array as long as `logits` that adds up to 1. Logits can be large: `np.exp(1000)` is infinite. What can you
subtract from all logits without changing the result?

Write `keep_likeliest(logits, temperature, k)`.
"""

HINTS = ("If 5 is added to all logits, what happens to the probabilities?",
         "np.argsort(-logits)[:k] are the indices of the k largest. Subtract the largest logit from them, divide by "
         "the temperature, exponentiate, and divide by the sum of those kept.",
         "exponentials = np.exp((logits[kept] - logits.max()) / temperature); shares = np.zeros(logits.size); "
         "shares[kept] = exponentials / exponentials.sum().")
POINTS = 2

import numpy as np

# %%
keep_likeliest = None  # write the function


### BEGIN SOLUTION
def keep_likeliest(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    kept = np.argsort(-logits)[:k]
    exponentials = np.exp((logits[kept] - logits.max()) / temperature)
    shares = np.zeros(logits.size)
    shares[kept] = exponentials / exponentials.sum()
    return shares


### END SOLUTION

# %% [check]
from labkit.course.exercises import FunctionExercise, Reach, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, FAR_BELOW_ZERO, ONE_FAR_ABOVE, ONE_FAR_BELOW, of


def _shares(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    kept = np.argsort(-logits, kind="stable")[:k]
    exponentials = np.exp((logits[kept] - logits.max()) / temperature)
    result = np.zeros(logits.size)
    result[kept] = exponentials / exponentials.sum()
    return result


def shares_times_temperature(logits, temperature, k):
    return _shares(logits, 1 / temperature, k)


def shares_temperature_last(logits, temperature, k):
    shares = _shares(logits, 1.0, k) / temperature
    return shares / shares.sum()


def shares_of_all(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    shares = _shares(logits, temperature, logits.size)
    shares[np.argsort(-logits, kind="stable")[k:]] = 0
    return shares


def shares_of_the_least(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    kept = np.argsort(logits, kind="stable")[:k]
    exponentials = np.exp((logits[kept] - logits[kept].max()) / temperature)
    result = np.zeros(logits.size)
    result[kept] = exponentials / exponentials.sum()
    return result


def shares_one_more(logits, temperature, k):
    return _shares(logits, temperature, k + 1)


def shares_too_large(logits, temperature, k):
    logits = np.asarray(logits, np.float64)
    with np.errstate(all="ignore"):
        exponentials = np.exp(logits / temperature)
        exponentials[np.argsort(-logits, kind="stable")[k:]] = 0
        return exponentials / exponentials.sum()


def shares_of_zeros(logits, temperature, k):
    logits = np.array(logits, np.float64)
    logits[np.argsort(-logits, kind="stable")[k:]] = 0
    exponentials = np.exp((logits - logits.max()) / temperature)
    return exponentials / exponentials.sum()


def _logits(rng, V, k, scale):
    return scale * uniform(rng, V) + np.float32(scale), float(rng.choice((0.5, 0.7, 1.6))), k


def _tied(rng, logits, temperature, k):
    """Those in the places k to k + 2 are equal: one of them is kept, whichever."""
    logits = logits.copy()
    order = np.argsort(-logits)
    logits[order[k : k + 2]] = logits[order[k - 1]]
    return logits, temperature, k


def _in_order_of_logits(shares, logits, temperature, k):
    return shares[np.lexsort((shares, logits))]


EXERCISE = FunctionExercise(
    name="keep_likeliest",
    reference=_shares,
    inputs=_logits,
    sizes=({"V": 6, "k": 3, "scale": 2}, {"V": 10, "k": 10, "scale": 3}, {"V": 50, "k": 1, "scale": 4},
           {"V": 300, "k": 40, "scale": 1000}),
    random_size=lambda rng: {"V": int(rng.integers(40, 200)), "k": int(rng.integers(2, 30)), "scale": 3},
    domain=(*of(0, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, ONE_FAR_ABOVE, ONE_FAR_BELOW),
            Reach("some logits are as large as the last one that is kept", _tied, {"V": 10, "k": 3, "scale": 2})),
    alike=_in_order_of_logits,
    tolerance=lambda logits, temperature, k: np.full(logits.size, 2e-5 + 2.0**-22 * np.abs(logits).max() / temperature),
    wrong={"the logits are multiplied by the temperature": shares_times_temperature,
           "the temperature divides the probabilities, which changes nothing": shares_temperature_last,
           "the kept tokens keep their probabilities among all: the sum is less than 1": shares_of_all,
           "the least likely tokens are kept": shares_of_the_least,
           "one token too many is kept": shares_one_more,
           "the others get the logit 0, and exp(0) is not 0": shares_of_zeros,
           "exp of large logits is infinite: the largest has to be subtracted first": shares_too_large},
)

EQUIVALENT = {
    "omission: shares[kept] = exponentials / exponentials.sum() -> shares[kept] += exponentials / exponentials.sum()":
        "shares holds zeros until then.",
}
