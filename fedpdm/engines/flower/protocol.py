"""What server and client say to each other, and how it travels in Flower's records.

A request is one round's work for one client, a reply its message or a refusal by name. Vectors travel as the bytes of
`fedpdm.compression.wire`, never as pickled arrays.
"""

import hashlib
import json
from typing import Any, NamedTuple, Self, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpdm.errors import UserError
from fedpdm.version import __version__

__all__ = ["PROTOCOL", "Request", "Reply", "Introduction", "Refused", "pack", "unpack"]

PROTOCOL = 1
_RECORD, _VECTORS, _WIRE = "fedpdm", "vectors", "fedpdm.wire"


class Refused(UserError):
    """A request that a client does not fulfil, or a reply that the server does not take: a name to count by, and a reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Request(NamedTuple):
    """One round's work for one client."""

    job: str  # our own name of the training, which outlives Flower's runs
    round: int  # counted from 0
    client: int
    settings: str  # the whole Config as JSON
    noise: str  # "secure", or "simulation" for experiments with public data
    accepted: str  # the client's last message that the server used; "" if there is none
    vectors: bytes = b""  # the broadcast

    def digest(self) -> str:
        """Two requests with one digest ask for the same thing."""
        return _digest(*self)


class Reply(NamedTuple):
    """A client's message, or why there is none."""

    job: str
    round: int
    client: int
    message: str = ""  # its name, by which the server acknowledges it
    refused: str = ""  # name of the refusal
    reason: str = ""
    vectors: bytes = b""

    @classmethod
    def of(cls, request: Request, vectors: bytes) -> Self:
        """The reply that carries `vectors`, named after its content."""
        return cls(request.job, request.round, request.client, message=_digest(*request[:3], vectors), vectors=vectors)

    @property
    def genuine(self) -> bool:
        """Whether the name is that of the content."""
        return self.message == _digest(self.job, self.round, self.client, self.vectors)


class Introduction(NamedTuple):
    """What a node says about itself when the server meets it: all of it is public."""

    client: int
    examples: int  # the public number n of places for examples
    features: int
    classes: int
    refused: str = ""
    reason: str = ""
    version: str = __version__


Said = TypeVar("Said", Request, Reply, Introduction)


def _digest(*parts: Any) -> str:
    plain = [part.hex() if isinstance(part, bytes) else part for part in parts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:32]


def pack(value: Request | Reply | Introduction) -> RecordDict:
    """As Flower sends it."""
    fields = value._asdict()
    vectors = fields.pop("vectors", b"")
    records = RecordDict({_RECORD: ConfigRecord({"protocol": PROTOCOL, **fields})})
    if vectors:
        records[_VECTORS] = ArrayRecord({"0": Array("uint8", (len(vectors),), _WIRE, vectors)})
    return records


def unpack(kind: type[Said], records: RecordDict) -> Said:
    """The value in Flower's records, every field of its type; anything else is Refused as "malformed"."""
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
