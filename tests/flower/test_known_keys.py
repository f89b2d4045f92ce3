"""A client's number belongs to the key that proved it first; a round that hardly anybody answered is none."""

from pathlib import Path

import pytest

from fedpdm.engines.flower.client.identity import KEY_FILE, prove
from fedpdm.engines.flower.protocol import Introduction, Meeting, Refused, check_meeting, statement
from fedpdm.engines.flower.server.known_keys import KnownKeys
from fedpdm.engines.flower.server.replies import require_enough
from fedpdm.errors import UserError
from fedpdm.secure_sums.member import agreement_statement, keys_statement

MEETING = Meeting("0" * 64, challenge="a" * 32)


def said(folder: Path, client: int, meeting: Meeting = MEETING) -> Introduction:
    folder.mkdir(exist_ok=True)
    key, proof = prove(folder, meeting, client)
    return Introduction(client, key=key, proof=proof)


def test_the_first_key_is_kept_and_another_one_is_refused(tmp_path):
    keys = KnownKeys(tmp_path)
    keys.require(MEETING, said(tmp_path / "a", 0))
    keys.require(MEETING, said(tmp_path / "a", 0))
    again = KnownKeys(tmp_path)  # the server was started anew
    again.require(MEETING, said(tmp_path / "a", 0))
    with pytest.raises(Refused, match="Client 0 has proved another key before"):
        again.require(MEETING, said(tmp_path / "b", 0))
    with pytest.raises(Refused, match="Its key belongs to another client than 1"):
        again.require(MEETING, said(tmp_path / "a", 1))
    assert (tmp_path / "a" / KEY_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("change", ["challenge", "client", "nothing"])
def test_a_proof_is_of_no_use_elsewhere(change, tmp_path):
    who = said(tmp_path / "a", 0)
    meeting = MEETING._replace(challenge="b" * 32) if change == "challenge" else MEETING
    who = who._replace(client=1) if change == "client" else who._replace(key="", proof="") if change == "nothing" else who
    with pytest.raises(Refused, match="does not prove"):
        KnownKeys(tmp_path).require(meeting, who)


def test_a_client_signs_nothing_but_challenges(tmp_path):
    assert prove(tmp_path, Meeting("0" * 64), 0)[1] == ""
    with pytest.raises(Refused, match="challenge"):
        check_meeting(Meeting("0" * 64, challenge="a word"))


def test_too_few_messages_are_no_round():
    require_enough(4, 5, 10, 0, [])
    require_enough(4, 1, 10, 1, ["client 3: late: No reply in time."])
    with pytest.raises(UserError, match=r"Round 5 got 4 messages that can be used, of 10 clients; it takes 5"):
        require_enough(4, 4, 10, 0, [])
    with pytest.raises(UserError, match="3 clients say that this checkpoint is an old copy"):
        require_enough(4, 0, 3, 0, [f"client {i}: order: The round is over." for i in range(3)])


def test_a_challenge_makes_a_client_sign_nothing_that_a_secure_sum_would_take():
    """One key signs introductions and sums. The three texts begin differently, so no challenge turns one into another."""
    texts = [
        statement(MEETING, 3),
        keys_statement(b"", b""),
        agreement_statement(b"", b"", [], []),
    ]
    assert len({text[:3] for text in texts}) == 3
