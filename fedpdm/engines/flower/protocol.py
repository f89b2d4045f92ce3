"""The messages between server and client, and their form in Flower's records.

A meeting asks a node for its client number, a request is one round's work for one client, and a reply is its message or a
refusal by a code of a closed list. Vectors travel as the bytes of `fedpdm.compression.wire`, never as pickled arrays.
"""

import hashlib
import json
import re
from typing import Any, NamedTuple, Self, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpdm.errors import UserError
from fedpdm.version import __version__

__all__ = [
    "PROTOCOL",
    "TASKS",
    "REFUSALS",
    "LONGEST_OFFER",
    "STEPS",
    "Meeting",
    "Request",
    "Reply",
    "Introduction",
    "Refused",
    "is_digest",
    "statement",
    "pack",
    "unpack",
    "check_meeting",
    "check_request",
]

PROTOCOL = 4
TASKS = ("standardise", "train", "evaluate", "intervals")
STEPS = ("advertise", "pieces", "masked", "agree", "reveal")  # of a secure sum (docs/secure-sums.md, section 6)
LAST_ROUND = 2**31 - 2  # rounds travel as 32-bit numbers
LONGEST_OFFER = 2**20  # characters of a job that a server offers: parsing takes 140 bytes for each
_RECORD, _VECTORS, _WIRE = "fedpdm", "vectors", "fedpdm.wire"
_DIGEST, _MESSAGE = re.compile(r"[0-9a-f]{64}"), re.compile(r"(?:[0-9a-f]{32})?")

# All refusals of a client that a server can see. No code and no text depends on a row; the details of a refusal stay in the
# node's own log.
REFUSALS: dict[str, str] = {
    "malformed": "The request is not one that this release of fedpdm makes.",
    "client": "The request is for another client.",
    "job": "This client has not approved the job.",
    "schema": "This client's table has another schema than the job.",
    "settings": "The job's settings contradict each other, break its bound, or are out of bounds.",
    "algorithm": "This client's policy does not allow the job's algorithm.",
    "mechanism": "This client's policy does not allow the job's mechanism.",
    "mode": "This client's policy does not allow the job's mode, or noise cannot be made exact in it.",
    "map": "This client's policy does not allow the job's feature map, its options or its seed.",
    "noise": "This client's policy asks for more noise, or for noise that is drawn securely.",
    "steps": "This client's policy allows fewer local steps.",
    "step-size": "This client's policy allows only smaller steps.",
    "radius": "This client's policy does not allow the job's radius.",
    "clip": "This client's policy allows only a smaller clip.",
    "rounds": "This client's policy allows fewer rounds.",
    "slots": "This client's policy allows fewer slots.",
    "intervals": "The job has no release for intervals, or it is not asked for after the last round.",
    "evaluation": "This client's policy does not allow this evaluation, or the job has none.",
    "standard": "The job does not standardise so, or the means that it does so by are missing or damaged.",
    "participations": "The job, or this client's policy, allows no further participation.",
    "jobs": "This client's policy allows no further job.",
    "budget": "This client's budget is too small for the release.",
    "spent": "The round was spent, but its message was lost: it is not made again.",
    "repeat": "The round was answered, for another request: a round is answered once.",
    "order": "The round is over: this client has answered a later one.",
    "state": "Server and client disagree about the last message that was used: one of the two is an old copy.",
    "model": "The model is damaged, not finite, or too large for exact noise.",
    "roster": "This client's policy does not approve the cohort: its members, its size, or who may collude or drop out.",
    "sum": "The step does not belong to a secure sum of this client, or is a repetition.",
    "rate": "This client has reached the day's limit of requests or refusals in its policy.",
    "disk": "This client's policy allows no more bytes on disk.",
    "busy": "Another process works for this client.",
    "node": "The node has an error; its own log has the details.",
}


class Refused(UserError):
    """A request that a client refuses, or a reply that the server does not use: a name to count by, and a reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Meeting(NamedTuple):
    """The server's first message to a node."""

    job: str  # the job's digest
    offer: str = ""  # the job's file, for clients that take any job within their limits
    challenge: str = ""  # to be signed by the client's key; "": nothing is to be proved


SUFFIXES = {
    "evaluate": ":evaluation",
    "standardise": ":standard",
    "intervals": ":intervals",
}  # added to the job's digest, in ledger and store


class Request(NamedTuple):
    """One round's work for one client. It carries no settings: the client holds the job itself."""

    task: str  # one of TASKS, or of STEPS
    job: str  # the job's digest
    round: int  # counted from 0
    client: int
    accepted: str  # the client's last message that the server used; "" if there is none
    vectors: bytes = b""  # the broadcast; of a step: the message of the sum, and the broadcast where it is needed
    standard: bytes = b""  # the noised means that rows are standardised by, if the job does so

    def digest(self) -> str:
        """Two requests with one digest ask for the same thing."""
        return _digest(*self)


class Reply(NamedTuple):
    """A client's message, or the reason for its absence."""

    job: str
    round: int
    client: int
    message: str = ""  # its name, with which the server acknowledges it
    refused: str = ""  # a key of REFUSALS
    reason: str = ""
    vectors: bytes = b""

    @classmethod
    def of(cls, request: Request, vectors: bytes) -> Self:
        """Make the reply with these `vectors`, named after its content."""
        return cls(*request[1:4], message=_digest(*request[1:4], vectors), vectors=vectors)

    @property
    def genuine(self) -> bool:
        """Whether the name fits the content."""
        return self.message == _digest(self.job, self.round, self.client, self.vectors)


class Introduction(NamedTuple):
    """A node's answer to the server's first message. Nothing in it comes from its rows, not even their number."""

    client: int
    refused: str = ""
    reason: str = ""
    version: str = __version__
    key: str = ""  # the client's public key: its identity, also on the rosters of secure sums
    proof: str = ""  # its signature of `statement`


Said = TypeVar("Said", Meeting, Request, Reply, Introduction)


def is_digest(text: str) -> bool:
    """Tell whether a text is a job's digest; anything else names neither a job nor a file.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    bool
        True for 64 hexadecimal digits.

    Examples
    --------
    >>> is_digest("0" * 64), is_digest("../state"), is_digest("")
    (True, False, False)
    """
    return _DIGEST.fullmatch(text) is not None


def statement(meeting: Meeting, client: int) -> bytes:
    """Return the text that a client signs to prove its number: of use in this meeting alone.

    Parameters
    ----------
    meeting : Meeting
        The question of the server.
    client : int
        The number of the client.

    Returns
    -------
    bytes
        The text.
    """
    return f"fedpdm: client {client} of job {meeting.job}, challenge {meeting.challenge}".encode()


def _digest(*parts: Any) -> str:
    plain = [part.hex() if isinstance(part, bytes) else part for part in parts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:32]


def pack(value: Meeting | Request | Reply | Introduction) -> RecordDict:
    """Turn a message into Flower's records.

    Parameters
    ----------
    value : Meeting, Request, Reply or Introduction
        The message.

    Returns
    -------
    RecordDict
        The records.
    """
    fields = value._asdict()
    vectors = fields.pop("vectors", b"")
    records = RecordDict({_RECORD: ConfigRecord({"protocol": PROTOCOL, **fields})})
    if vectors:
        records[_VECTORS] = ArrayRecord({"0": Array("uint8", (len(vectors),), _WIRE, vectors)})
    return records


def unpack(kind: type[Said], records: RecordDict) -> Said:
    """Read a message from Flower's records; every field must have its type and its bounds.

    Parameters
    ----------
    kind : type
        Meeting, Request, Reply or Introduction.
    records : RecordDict
        The records.

    Returns
    -------
    Meeting, Request, Reply or Introduction
        The message.

    Raises
    ------
    Refused
        With the code "malformed".
    """
    try:
        fields = dict(records.config_records[_RECORD])
    except KeyError:
        raise Refused("malformed", "Expected a record of fedpdm: the other side runs another app.") from None
    if fields.pop("protocol", None) != PROTOCOL:
        raise Refused("malformed", f"Expected protocol {PROTOCOL}: install the same release of fedpdm on both sides.")
    if "vectors" in kind._fields:
        arrays = records.array_records.get(_VECTORS, {})
        fields["vectors"] = b"".join(array.data for array in arrays.values() if array.stype == _WIRE)
    hints = kind.__annotations__
    wrong = [name for name in kind._fields if type(fields.get(name)) is not hints[name]]
    if wrong or len(fields) != len(kind._fields):
        raise Refused("malformed", f"Expected the fields {', '.join(kind._fields)}; {', '.join(wrong) or 'others'} differ.")
    return kind(**fields)  # type: ignore[arg-type]


def check_meeting(meeting: Meeting) -> None:
    """Refuse a meeting that no server of this package sends.

    Parameters
    ----------
    meeting : Meeting
        The message.

    Raises
    ------
    Refused
        With the code "malformed".
    """
    if not (isinstance(meeting.job, str) and is_digest(meeting.job)):
        raise Refused("malformed", "Expected the job to be named by its digest, 64 hexadecimal digits.")
    if not (isinstance(meeting.offer, str) and len(meeting.offer) <= LONGEST_OFFER):
        raise Refused("malformed", f"Expected an offered job of at most {LONGEST_OFFER} characters.")
    if not (isinstance(meeting.challenge, str) and _MESSAGE.fullmatch(meeting.challenge)):
        raise Refused("malformed", "Expected a challenge of 32 hexadecimal digits, or none.")


def check_request(request: Request) -> None:
    """Refuse a request that no server of this package sends, before anything is looked up, written or quoted.

    Parameters
    ----------
    request : Request
        The message.

    Raises
    ------
    Refused
        With the code "malformed".
    """
    if not (isinstance(request.job, str) and is_digest(request.job)):
        raise Refused("malformed", "Expected the job to be named by its digest, 64 hexadecimal digits.")
    if request.task not in (*TASKS, *STEPS):
        raise Refused("malformed", f"Expected the task to be one of {', '.join((*TASKS, *STEPS))}.")
    for name in ("round", "client"):
        value = getattr(request, name)
        if type(value) is not int or not 0 <= value <= LAST_ROUND:
            raise Refused("malformed", f"Expected {name} to be a whole number from 0 to {LAST_ROUND}.")
    if not (isinstance(request.accepted, str) and _MESSAGE.fullmatch(request.accepted)):
        raise Refused("malformed", "Expected the name of the accepted message to be 32 hexadecimal digits, or empty.")
    if not (isinstance(request.vectors, bytes) and isinstance(request.standard, bytes)):
        raise Refused("malformed", "Expected the vectors as bytes.")
