r"""Accounting for secure sums: a cohort of clients shares the noise, and the server sees only the sum.

Setting. $K$ members are invited. At least $K - d$ vectors are in every opened sum (d dropouts are tolerated). At most $t$
members tell the server everything they know. So every sum holds the noise of at least $H = K - d - t$ honest members. A
member multiplies its vector by the lattice's scale S, rounds it, and adds a *share* of noise: a discrete Gaussian of
$a = \sigma_0 S$ lattice steps per coordinate. The sum is taken modulo $2^b$, which is post-processing.

Formal guarantee (Lemma L and Theorem S1 of docs/secure-sums.md). One sum counts as one Gaussian release with noise multiplier

$$z = \frac{\sqrt{H \sigma_0^2 - (3/S)^2}}{s'},$$

s' being the sensitivity of the member's own vector after it was rounded (`rounded`): R participations are $\mu$-GDP,
$\mu = \sqrt R/z$, up to a factor $e^{\pm\kappa}$ of all probabilities that `lattice_slack` bounds, and an addition of
$R\,2^{-64}$ to delta. Unit, relation and adversary: one example of one
client; the relation that s is for; the server together with t other members, and everybody who sees the sums. Assumption:
the protocol shows the server one sum per round and nothing else. `own_share_multiplier` is what is left without it.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

from fedpdm.errors import ConfigError
from fedpdm.privacy.rotation import block

if TYPE_CHECKING:  # a member's process needs no JAX
    from fedpdm.privacy.sensitivity import Number

__all__ = [
    "Cohort",
    "Lattice",
    "make_cohort",
    "lattice_slack",
    "own_share_multiplier",
    "rounded",
    "share_sigma",
    "sum_multiplier",
    "choose_lattice",
    "wrap_deviations",
]

SMOOTHING = 3.0  # tau of `fedpdm.privacy.noise`, in lattice steps
LEAST_STEPS = 3.0  # least noise of one share in lattice steps: Lemma L's factor is below 1e-38 per coordinate and share
MOST_BITS = 32  # a sum is taken in words of so many bits, or fewer
HEADROOM = 8.0  # standard deviations of a coordinate of the sum that fit into the modulus; beyond them it would wrap
ROUNDING = math.sqrt(65 * math.log(2) / 2)  # h of `rounded`: sqrt(ln(2/beta)/2) for beta = 2^-64


class Cohort(NamedTuple):
    """The members of a sum.

    Attributes
    ----------
    members
        K, the number of invited members.
    colluding
        t, how many of them may work with the server.
    dropouts
        d, how many may be missing in an opened sum.

    Examples
    --------
    >>> cohort = Cohort(30, colluding=3, dropouts=3)
    >>> cohort.least, cohort.honest, cohort.threshold
    (27, 24, 17)
    """

    members: int
    colluding: int
    dropouts: int

    @property
    def least(self) -> int:
        """The fewest vectors in an opened sum."""
        return self.members - self.dropouts

    @property
    def honest(self) -> int:
        """H: the shares of noise that the adversary cannot subtract."""
        return self.least - self.colluding

    @property
    def threshold(self) -> int:
        """How many must agree to open a sum: two sets of this size share a member that does not collude."""
        return (self.members + self.colluding) // 2 + 1

    def check(self) -> "Cohort":
        """Return the cohort itself, or raise a ConfigError if it cannot have a guarantee."""
        if self.members < 2 or self.colluding < 0 or self.dropouts < 0:
            raise ConfigError(
                f"Expected cohorts.size={self.members} >= 2, cohorts.colluding={self.colluding} >= 0 and "
                f"cohorts.dropouts={self.dropouts} >= 0: a sum of one vector hides nothing."
            )
        if self.honest < 1:
            raise ConfigError(
                f"cohorts.colluding={self.colluding} and cohorts.dropouts={self.dropouts} leave no honest member of "
                f"cohorts.size={self.members}: lower one of them, or enlarge the cohort."
            )
        if self.least < self.threshold:
            raise ConfigError(
                f"A sum of cohorts.size={self.members} members, cohorts.colluding={self.colluding} of them with the server, is "
                f"opened by {self.threshold}, but cohorts.dropouts={self.dropouts} may leave only {self.least}: set "
                f"cohorts.dropouts to at most {max(self.members - self.threshold, 0)}."
            )
        return self


def make_cohort(members: int, colluding: int | None = None, dropouts: int | None = None) -> Cohort:
    """Make a checked cohort. By default a tenth of the members collude (rounded up), and a tenth drop out (rounded down).

    Parameters
    ----------
    members : int
        K.
    colluding, dropouts : int, optional
        t and d.

    Returns
    -------
    Cohort
        The cohort.

    Examples
    --------
    >>> make_cohort(25)
    Cohort(members=25, colluding=3, dropouts=2)
    """
    colluding = math.ceil(members / 10) if colluding is None else colluding
    return Cohort(members, colluding, members // 10 if dropouts is None else dropouts).check()


class Lattice(NamedTuple):
    """The numbers of shares: whole multiples of 1/`scale`, added up modulo 2^`bits`."""

    scale: int
    bits: int


def rounded(sensitivity: "Number", dimension: int, scale: int) -> "Number":
    r"""Return the sensitivity of a vector that was rounded to the lattice at random, up or down, so that the mean is right.

    $s' = \min\{s + \sqrt D/S,\ \sqrt{s^2 + 2 h s/S + (D/4 + h\sqrt D)/S^2}\}$ with $h = \sqrt{\ln(2/\beta)/2}$. The first
    always holds, the second except with probability $\beta = 2^{-64}$ (docs/secure-sums.md, Lemma R).

    Parameters
    ----------
    sensitivity, dimension, scale
        s, D and S, as plain numbers or JAX arrays.

    Returns
    -------
    number
        s'.

    Examples
    --------
    >>> [round(rounded(s, 2010, 1) / s, 2) for s in (10.0, 50.0, 1000.0)]
    [3.02, 1.21, 1.01]
    """
    root = math.sqrt(dimension)
    spread = (sensitivity**2 + 2 * ROUNDING * sensitivity / scale + (dimension / 4 + ROUNDING * root) / scale**2) ** 0.5
    worst = sensitivity + root / scale
    return spread + (worst - spread) * (worst < spread)  # the smaller one


def share_sigma(noise_multiplier: float, sensitivity: "Number", dimension: int, shares: int, scale: int) -> "Number":
    r"""Return the $\sigma_0$ of one member with which `shares` of them give the noise multiplier z.

    $\sigma_0 = \sqrt{(z s')^2 + (3/S)^2}/\sqrt H$, with the s' of `rounded`.

    Parameters
    ----------
    noise_multiplier, sensitivity, dimension, shares, scale
        z, s, D, H and S, as plain numbers or JAX arrays.

    Returns
    -------
    number
        $\sigma_0$.
    """
    noise = noise_multiplier * rounded(sensitivity, dimension, scale)
    return ((noise**2 + (SMOOTHING / scale) ** 2) / shares) ** 0.5


def sum_multiplier(sigma: float, sensitivity: float, dimension: int, shares: int, scale: int) -> float:
    r"""Return the z of a sum with `shares` shares of noise `sigma`. Guarantee: head of the module.

    Parameters
    ----------
    sigma, sensitivity, dimension, shares, scale
        $\sigma_0$, s, D, H and S.

    Returns
    -------
    float
        z; 0 if the shares prove nothing.

    Examples
    --------
    >>> z = sum_multiplier(share_sigma(20.0, 0.01, 7850, 24, 2**24), 0.01, 7850, 24, 2**24)
    >>> round(z, 9)
    20.0
    """
    if sigma * scale < LEAST_STEPS:
        return 0.0
    variance = shares * sigma**2 - (SMOOTHING / scale) ** 2
    return math.sqrt(max(variance, 0.0)) / float(rounded(sensitivity, dimension, scale))


def own_share_multiplier(noise_multiplier: float, dimension: int, shares: int, steps: float = 0.0) -> float:
    r"""The z of a member's own share alone, for a sum of `shares` with this noise multiplier, rounded down.

    It is $\sqrt{\sigma_0^2 - (3/S)^2}/s' = \sqrt{z^2/H - (1 - 1/H)\,\varrho^2}$, where $\varrho = (3/S)/s'$. It holds
    whatever becomes of the protocol, the server and all others.

    Parameters
    ----------
    noise_multiplier, dimension, shares
        z of the sum, D and H.
    steps
        A lower bound on S s, the sensitivity in lattice steps.

    Returns
    -------
    float
        z of the own share.

    Examples
    --------
    >>> from fedpdm.privacy.accounting import epsilon_of, noise_multiplier_for
    >>> z = noise_multiplier_for(1.0, 1e-5, 60, "add-remove")
    >>> [round(epsilon_of(own_share_multiplier(z, 7850, h), 60, 1e-5, "add-remove"), 1) for h in (20, 24, 80)]
    [5.4, 6.0, 12.5]
    """
    smoothed = (SMOOTHING / float(rounded(steps, dimension, 1))) ** 2
    return math.sqrt(max(noise_multiplier**2 / shares - (1 - 1 / shares) * smoothed, 0.0))


def lattice_slack(steps: float, dimension: int, shares: int, releases: int) -> float:
    r"""Bound $\kappa$: the lattice adds at most $2\kappa$ to an epsilon, and multiplies a delta by at most $e^\kappa$.

    With $a = \sigma_0 S$ it adds Lemma L, $6.3 D (H-1) e^{-\pi^2 a^2}$, and the step from the discrete Gaussian of
    variance $H a^2$ to a continuous one, $6.3 D e^{-18\pi^2}$ (head of `fedpdm.privacy.noise`), over all releases.

    Parameters
    ----------
    steps : float
        a, the noise of a share in lattice steps.
    dimension, shares, releases : int
        D, H, and the number of releases.

    Returns
    -------
    float
        The bound.
    """
    lemma = (shares - 1) * math.exp(-((math.pi * steps) ** 2))
    return 6.3 * dimension * releases * (lemma + math.exp(-2 * (math.pi * SMOOTHING) ** 2))


def wrap_deviations(reach: float, sigma: float, dimension: int, members: int, lattice: Lattice) -> float:
    """How many standard deviations of a coordinate of the sum, rotated and with its noise, the edge of the modulus is away.

    Parameters
    ----------
    reach
        Norm of the mean of the members' vectors, without noise.
    sigma
        The noise of one share.
    dimension
        D: a rotated vector is spread over at least `block(D)` coordinates.
    members
        K; nobody drops out in the worst case.
    lattice
        Scale and modulus.

    Returns
    -------
    float
        The number of standard deviations.
    """
    edge = 2.0 ** (lattice.bits - 1) / lattice.scale
    return edge / math.hypot(members * reach / math.sqrt(block(dimension)), math.sqrt(members) * sigma)


def choose_lattice(
    bits: int, reach: float, noise_multiplier: float, sensitivity: float, dimension: int, cohort: Cohort, largest: int
) -> Lattice:
    """Return the finest lattice on which a sum of `bits` bits does not wrap; S is a power of two of at most 2^24.

    Parameters
    ----------
    bits
        b, the bits of a word.
    reach
        As in `wrap_deviations`.
    noise_multiplier, sensitivity, dimension
        Of one sum, for the largest noise of all rounds.
    cohort
        The members that share it.
    largest
        The most members of a sum: clients that fill no cohort of their own join the others.

    Returns
    -------
    Lattice
        The lattice.
    """
    if not 2 <= bits <= MOST_BITS:
        raise ConfigError(f"Expected cohorts.bits={bits} from 2 to {MOST_BITS}.")
    for power in range(24, -1, -1):
        lattice = Lattice(2**power, bits)
        sigma = float(share_sigma(noise_multiplier, sensitivity, dimension, cohort.honest, lattice.scale))
        room = wrap_deviations(reach, sigma, dimension, largest, lattice)
        if room >= HEADROOM and sigma * lattice.scale >= LEAST_STEPS:
            return lattice
    raise ConfigError(
        f"No lattice keeps a sum of {largest} members (cohorts.size={cohort.members}) within cohorts.bits={bits} bits: raise "
        f"cohorts.bits (up to {MOST_BITS})."
    )
