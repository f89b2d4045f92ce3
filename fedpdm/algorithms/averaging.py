"""FedAvg (McMahan et al., 2017) and FedProx (Li et al., 2020), which adds a proximal term to it."""

from typing import NamedTuple

from jax import Array

from fedpdm.algorithms.aggregate import Aggregator, element_wise_mean
from fedpdm.algorithms.base import Algorithm, Broadcast, Reports
from fedpdm.errors import ConfigError
from fedpdm.problem.penalties import Penalty

__all__ = ["fedavg", "fedprox", "ServerState"]


class ServerState(NamedTuple):
    """The server keeps the global model alone."""

    x0: Array


def fedavg(*, aggregate: Aggregator = element_wise_mean) -> Algorithm:
    r"""Federated averaging.

    A client takes gradient steps on its own $f_i$ from $x_0$ and sends where it ends; the server takes the mean. With a
    penalty h the server then takes its prox with the length of the clients' walk, $\eta Q$, so that one local step is
    one proximal gradient step on the whole problem:

    $$x_0 \leftarrow \mathrm{prox}_{\eta Q h}\Big(\frac1K \sum_{i \in S} x_i\Big).$$

    Parameters
    ----------
    aggregate : Aggregator
        How the server combines vectors.

    Returns
    -------
    Algorithm
        The algorithm.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-efficient learning of deep networks from
    decentralized data", AISTATS 2017.
    """
    return _averaging("fedavg", 0.0, aggregate)


def fedprox(*, mu: float, aggregate: Aggregator = element_wise_mean) -> Algorithm:
    r"""FedAvg with $\frac\mu2 \|x - x_0\|^2$ in the local problem. With $\mu = 0$ it is FedAvg.

    The prox at the server has the length of a walk that the proximal term pulls back, $(1 - (1 - \eta\mu)^Q)/\mu$.

    Parameters
    ----------
    mu : float
        Weight of the proximal term, at least 0.
    aggregate : Aggregator
        How the server combines vectors.

    Returns
    -------
    Algorithm
        The algorithm.

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated optimization in heterogeneous networks", MLSys 2020.
    """
    if not mu >= 0:
        raise ConfigError(f"Expected algorithm.mu={mu} >= 0: it is the weight of the proximal term.")
    return _averaging("fedprox", mu, aggregate)


def _averaging(name: str, weight: float, aggregate: Aggregator) -> Algorithm:
    def init_client(x0: Array) -> tuple[()]:
        return ()

    def init_server(x0: Array, clients: int) -> ServerState:
        return ServerState(x0)

    def linear_term(state: tuple[()], broadcast: Broadcast) -> Array:
        return 0 * broadcast.x0

    def client_update(state: tuple[()], broadcast: Broadcast, x: Array, travel: Array) -> tuple[tuple[()], Array]:
        return (), x

    def server_update(state: ServerState, reports: Reports, penalty: Penalty) -> ServerState:
        return ServerState(penalty.prox(aggregate(reports.messages, reports.arrived(), reports.shares), reports.travel))

    return Algorithm(
        name,
        weight,
        init_client,
        init_server,
        linear_term,
        client_update,
        server_update,
        solution=lambda message, state, broadcast: message,
        told=lambda state, broadcast, message: (),
    )
