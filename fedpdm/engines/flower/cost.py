"""The cost of a whole job: what an operator approves, and what spending is measured against."""

from fedpdm.engines.flower.job import Job
from fedpdm.privacy.accounting import compose_gdp, effective_multiplier, gdp_epsilon

__all__ = ["job_epsilon"]


def job_epsilon(job: Job) -> float | None:
    """Return the cost of a whole job for one client that takes part as often as the job allows.

    Parameters
    ----------
    job : Job
        The job.

    Returns
    -------
    float or None
        Epsilon; None: there is no guarantee.
    """
    config, plan = job.config, job.setup[1]
    if plan is None or job.noise != "secure":
        return None
    releases = [plan.cost_multiplier()] * plan.participations
    if plan.standard_multiplier:
        releases.append(plan.standard_cost_multiplier())
    if plan.interval_multiplier:
        releases.append(plan.interval_cost_multiplier())
    if job.evaluation is not None:
        releases += [job.evaluation.cost_multiplier(config)] * len(job.evaluation.rounds(config.rounds.total))
    return gdp_epsilon(compose_gdp(effective_multiplier(z, plan.relation) for z in releases), plan.delta)
