"""The jobs that a client holds: files in its state folder, each under the job's digest."""

from functools import lru_cache
from pathlib import Path

from fedpdm.engines.flower.client.admission import Admission
from fedpdm.engines.flower.client.node_data import forget_job
from fedpdm.engines.flower.client.policy import Policy, check_cohort, check_job, check_plan
from fedpdm.engines.flower.cohort.agreement import agree_on
from fedpdm.engines.flower.job import Job, check_size, job_toml, parse_job
from fedpdm.engines.flower.protocol import Refused, is_digest
from fedpdm.errors import ConfigError
from fedpdm.runs.folder import atomic_write

__all__ = ["held_job", "held_digests", "hold", "remove", "check_whole", "take_offer"]

FOLDER = "jobs"
_parse = lru_cache(maxsize=16)(parse_job)


def held_digests(folder: Path) -> list[str]:
    """List the jobs of a state folder, oldest first.

    Parameters
    ----------
    folder : Path
        The state folder.

    Returns
    -------
    list of str
        The digests.
    """
    paths = sorted((folder / FOLDER).glob("*.toml"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [path.stem for path in paths if is_digest(path.stem)]


def held_job(folder: Path, digest: str) -> Job | None:
    """Return a job that the client holds. A changed file is another job, which nobody approved.

    Parameters
    ----------
    folder : Path
        The state folder.
    digest : str
        The job.

    Returns
    -------
    Job or None
        The job; None if the client does not hold it.
    """
    if not is_digest(digest):
        return None
    path = folder / FOLDER / f"{digest}.toml"
    if not path.is_file():
        return None
    job = _parse(path.read_text(encoding="utf-8"), str(path))
    if job.digest != digest:
        raise Refused("job", f"{path} was changed since it was approved: approve it again.")
    return job


def check_whole(policy: Policy, job: Job) -> None:
    """Refuse a job that the policy does not allow, or whose settings break the bound. It looks at the job's file alone.

    Parameters
    ----------
    policy, job
        The policy and the job.

    Raises
    ------
    Refused
        With a code of `REFUSALS`.
    """
    check_job(policy, job)
    try:
        check_size(job, job.width)
        _, plan = job.setup
    except ConfigError as error:
        raise Refused("settings", str(error)) from None
    if plan:
        check_plan(policy, plan)
    if job.config.privacy.trust == "cohorts":
        check_cohort(policy, agree_on(job).sums.cohort)


def hold(folder: Path, job: Job, policy: Policy) -> Path:
    """Store a job that the policy allows. The caller has the owner's consent, or a policy that takes any such job.

    Parameters
    ----------
    folder, job, policy
        The state folder, the job and the policy.

    Returns
    -------
    Path
        The stored file.
    """
    check_whole(policy, job)
    held = held_digests(folder)
    path = folder / FOLDER / f"{job.digest}.toml"
    if job.digest not in held:
        if len(held) >= policy.limits.jobs_max:
            raise Refused("jobs", f"{folder} holds {len(held)} jobs, as many as the policy allows (jobs_max).")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_write(path, job_toml(job).encode())
    return path


def remove(folder: Path, name: str) -> str:
    """Hold a job no longer: its file and its prepared examples go; what was spent for it stays on the ledger.

    Parameters
    ----------
    folder : Path
        The node's state folder.
    name : str
        The job's digest, or as much of its beginning as is needed to tell it from the others.

    Returns
    -------
    str
        The job's digest.
    """
    found = [digest for digest in held_digests(folder) if name and digest.startswith(name)]
    if len(found) != 1:
        raise ConfigError(
            f"{folder} holds {len(found)} jobs whose digest begins with {name!r}: `fedpdm flower status {folder}` lists them."
        )
    (folder / FOLDER / f"{found[0]}.toml").unlink()
    forget_job(folder, found[0])
    return found[0]


def take_offer(folder: Path, digest: str, offer: str, policy: Policy, admission: Admission) -> Job:
    """Store the job that a server offers, if the policy takes any job within its limits.

    Parameters
    ----------
    folder, digest, offer
        The state folder, the digest of the job, and its file.
    policy, admission
        The policy, and the counts of the day.

    Returns
    -------
    Job
        The job.
    """
    if not (policy.takes_offers and offer):
        raise Refused("job", f"This client does not hold job {digest}: `fedpdm flower approve JOB` lets it take part.")
    try:
        job = parse_job(offer)
    except ConfigError as error:
        raise Refused("settings", str(error)) from None
    if job.digest != digest:
        raise Refused("job", f"The offered job has the digest {job.digest}, not {digest}.")
    check_whole(policy, job)
    admission.admit("jobs", policy)
    hold(folder, job, policy)
    return job
