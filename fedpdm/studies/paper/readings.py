"""How the paper is read where it is silent or cannot be meant literally: in one place, printed under every figure.

docs/reading-the-paper.md shows the effect of the other choices.
"""

__all__ = ["readings"]

COMMON = (
    "gamma is for the sum over clients (threshold gamma/(rho N)): taken for the mean, the default model is zero.",
    "At most Q = 10 local steps of disjoint batches of 10 (nu = 0.01 alone does not stop them).",
    "S_0 = all clients, then 30 of 100; server rule: mean over the round's participants.",
    "Initial points N(0, 0.01^2), one per seed, which also draws participants, batches and noise.",
)
NOISE = (
    "epsilon is the paper's nominal figure (Theorems 1 and 2, G = 1, c0 = 1, the actual Q, delta = 1e-4, add-remove).",
    "It is not a guarantee. Noise is added to the coordinates that were selected.",
)
ROUNDS_SAID = ("T = 200, as the paper says for its sparsification study.",)
ROUNDS_CHOSEN = ("T = 100: the paper gives no number of rounds for this figure.",)
SPARSE = (
    "Element-wise mean over the clients that sent a coordinate; zero where none did.",
    "Tested is the server's own dense x0, not what the downlink leaves of it.",
    "Costs are the bytes of encoded messages, indices included.",
)
BASELINES = (
    "All algorithms have the same step sizes, batches, local steps, clip and noise rule; nothing is tuned.",
    "FedProx mu = 0.1, FedDyn alpha = rho = 10, SCAFFOLD option II; the penalty by prox at the server.",
)
BY_FIGURE = {
    "fig2": (*ROUNDS_SAID, *COMMON, *NOISE, *SPARSE),
    "fig3": (*ROUNDS_SAID, *COMMON, *NOISE, *SPARSE),
    "fig4": (*ROUNDS_CHOSEN, *COMMON, *NOISE),
    "fig5": (*ROUNDS_CHOSEN, *COMMON, *NOISE),
    "fig6": (*ROUNDS_CHOSEN, *COMMON, *NOISE),
    "fig7": (*ROUNDS_CHOSEN, *COMMON, *NOISE, *BASELINES),
    "fig8": (
        "T = 200: the paper's number for its sparsification study, taken for this figure too; top-k for all.",
        *COMMON,
        *NOISE,
        *SPARSE,
        *BASELINES,
    ),
}


def readings(figure: str, quick: bool = False) -> tuple[str, ...]:
    """List the choices that a figure depends on.

    Parameters
    ----------
    figure : str
        Name of the figure.
    quick : bool
        A small version that shows that everything works.

    Returns
    -------
    tuple of str
        One sentence each.
    """
    note = ("QUICK: a tenth of the rounds, some of the curves, no first round of all clients: it measures nothing.",)
    return (*(note if quick else ()), *BY_FIGURE[figure])
