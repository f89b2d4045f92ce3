"""An operator's approval of a job: what it asks of this client, in plain words, and the job in the client's own folder."""

from pathlib import Path

from fedpdm.data.basis_files import is_pinned
from fedpdm.data.columns import Image
from fedpdm.data.encoders import encoder_of
from fedpdm.data.features import map_words, options_of
from fedpdm.engines.flower.client.held_jobs import check_whole, hold
from fedpdm.engines.flower.client.node_data import NodeSource, check_schema, load_examples
from fedpdm.engines.flower.client.policy import Policy
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.cost import job_epsilon
from fedpdm.engines.flower.job import Job
from fedpdm.errors import UserError
from fedpdm.participation import cohort_table
from fedpdm.privacy.sums import Cohort

__all__ = ["approve", "explain"]

FIRST = {
    True: "Means and deviations: one message before training, by which the rows of all clients are centred and scaled",
    False: "Second moment of the features: one message before training, whose strongest directions all rows are put on",
}  # by data.standardise


def explain(job: Job, client: int | None = None) -> list[str]:
    """Explain what the job asks of this client.

    Parameters
    ----------
    job : Job
        The job.
    client : int, optional
        The client's number, where clients have different slots.

    Returns
    -------
    list of str
        Lines of text.
    """
    config, plan = job.config, job.setup[1]
    data, local = config.data, config.local
    batch = f"batches of {local.batch_size} rows" if local.batch_size else "all rows in every step"
    classes = ", ".join(job.classes[:6]) + (", ..." if len(job.classes) > 6 else "")
    what = f"the {job.kind} {classes}" if job.numeric else f"{len(job.classes)} classes ({classes})"
    maps = f"data.features={map_words(data, job.features)}, data.scaling={data.scaling}{_map_words(job)}"
    lines = [f"Job {job.digest}"]
    lines.append(
        f"Learns a model of {what} from {_input_words(job)}, with "
        f"{config.algorithm.name}, in {config.rounds.total} rounds among {data.clients} clients."
    )
    lines.append(
        f"{_slot_words(job, client)}; more are refused here, and their number stays secret. Each row is mapped by "
        f"{maps}, and its norm is cut to {data.radius or 1.0:g}."
    )
    steps = "1 local step" if local.steps == 1 else f"{local.steps} local steps"
    lines.append(f"Work: {steps} of size {local.step_size:g} in a round, {batch}.")
    if plan is None:
        return [*lines, "Noise: NONE. The messages protect nothing."]
    if job.noise != "secure":
        return [*lines, "Noise: simulated, from a seed that the server knows. The messages protect NOTHING."]
    one = "one row" if job.unit is None else f"all rows of one {job.unit}"
    if plan.standard_multiplier:
        lines.append(
            f"{FIRST[job.settings.data.standardise]}, with "
            f"noise of {plan.standard_multiplier:.4g} times the largest effect of {one}."
        )
    what = f"{plan.noise_multiplier:.4g} times the largest effect of {one} (mode {plan.mode}, clip {plan.clip:g})"
    if plan.shared is None:
        lines.append(f"Messages: at most {plan.participations}, each with noise of {what}.")
    else:
        whose = "the noise of its honest members is" if plan.shared.budget == "sum" else "the noise of this client alone is"
        lines.append(
            f"Secure sums: at most {plan.participations}, {plan.shared.against()}; {whose} {what}.{plan.shared.other_figure()}"
        )
        lines += _cohort_words(job, plan.shared.cohort, client)
    if plan.interval_multiplier:
        lines.append(
            "Intervals: one message after training, with the gradient and the curvature at the released model, with noise of "
            f"{plan.interval_multiplier:.4g} times the largest effect of {one}."
        )
    if job.evaluation is not None:
        times, sums = len(job.evaluation.rounds(config.rounds.total)), "sums" if job.kind == "number" else "counts"
        lines.append(
            f"Evaluations: {times}, on {job.evaluation.share:.0%} of the rows, which are not trained on; {sums} with noise of "
            f"{job.evaluation.noise_multiplier(config):.4g} times the largest effect of {one}."
        )
    relation = f"adding or removing {one}" if plan.relation == "add-remove" else f"replacing {one}"
    lines.append(f"Cost: epsilon = {job_epsilon(job):.4g} at delta = {plan.delta:g} in all, for {relation}.")
    if job.unit is not None:
        most = f"more than {plan.clients_per_unit} clients" if plan.clients_per_unit > 1 else "another client"
        lines.append(f"This holds if no {job.unit} has rows at {most}, which no client can check.")
    return lines


def _cohort_words(job: Job, cohort: Cohort, client: int | None) -> list[str]:
    """Whom this client shares sums with, where the job has several cohorts: its policy should list no other keys."""
    config, clients = job.config, job.config.data.clients
    if clients < 2 * cohort.members:
        return []
    if config.cohorts.members == "new":
        most = f"no more than {cohort.colluding} of all of them may work with the server"
        return [f"Cohorts: new ones of at least {cohort.members} in every round, from all {clients} clients, and {most}."]
    table, real = cohort_table(clients, cohort.members, config.seed)
    each = [sorted(row[own].tolist()) for row, own in zip(table, real, strict=True)]
    if client is None:
        return [f"Cohorts: {len(each)} of at least {cohort.members} members each, which stay the same."]
    own = next((members for members in each if client in members), [])
    return [f"Cohort of this client: clients {', '.join(map(str, own))}. Its policy should list their keys and no others."]


def _slot_words(job: Job, client: int | None) -> str:
    if client is None and job.client_slots:
        most = f"between {min(job.client_slots)} and {job.slots}, one number for each client"
    else:
        most = f"at most {job.slots if client is None else job.slots_of(client)}"
    if job.kind == "time":
        return f"Subjects, one row of the file each: {most} (slots); a subject has a row in each of {job.unit_rows} time bands"
    if job.unit is None:
        return f"Rows: {most} (slots)"
    return f"Each {job.unit} counts as one, with at most {job.unit_rows} rows; {job.unit}s: {most} (slots)"


def _input_words(job: Job) -> str:
    images = [column for column in job.table.columns.values() if isinstance(column, Image)] if job.table else []
    return f"images of {' x '.join(map(str, images[0].shape))} pixels" if images else f"{len(job.features)} columns"


def _map_words(job: Job) -> str:
    data = job.config.data
    words = []
    if digest := encoder_of(job.config):
        words.append(f"the public encoder with SHA-256 {digest}")
    if data.features == "fourier":
        options = options_of(data)
        count, bandwidth, seed = (options[key] for key in ("fourier_count", "fourier_bandwidth", "features_seed"))
        words.append(f"{count} cosines, bandwidth {bandwidth:g}, seed {seed}")
    if is_pinned(data.basis):
        words.append(f"{data.basis_size} directions of the public file {data.basis}")
    return f" ({'; '.join(words)})" if words else ""


def approve(state_dir: Path, job: Job, policy: Policy, source: NodeSource | None = None) -> Path:
    """Store the job in the client's folder, if the policy allows it and the data fit it.

    Parameters
    ----------
    state_dir, policy
        The node's folder and its policy.
    job
        The job that the operator agreed to.
    source
        The node's data: the schema must be the job's, and there must not be more rows than slots. None: they are not checked.

    Returns
    -------
    Path
        The stored file.
    """
    with open_store(state_dir):
        check_whole(policy, job)
        if source is not None:
            check_fit(source, job, state_dir)
        return hold(state_dir, job, policy)


def check_fit(source: NodeSource, job: Job, state_dir: Path) -> None:
    """Refuse data that do not fit the job, here and not to the server."""
    check_schema(source, job)
    try:
        own = load_examples(source, job, state_dir)
    except UserError as error:
        raise UserError(f"The data do not fit job {job.digest[:12]}: {error}") from None
    if own.beyond:
        raise UserError(
            f"The data do not fit job {job.digest[:12]}: {own.beyond} {job.unit or 'row'}s are beyond its "
            f"{job.slots_of(source.client)} slots. Leave them out, or take part in a job with more slots."
        )
