"""Secure sums: exact with dropouts at every step, closed below the threshold, and no information for a hostile server."""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sum_kit import STEPS, Cohort, cohort, exact, shares_of

from fedpdm.secure_sums.keys import mask
from fedpdm.secure_sums.member import KEY_BYTES, Member, agreement_statement, keys_statement
from fedpdm.secure_sums.messages import KINDS, ProtocolError, pack, pack_numbers, unpack, unpack_numbers
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.shamir import PIECE_BYTES, combine
from fedpdm.secure_sums.terms import Approval, Terms


@pytest.mark.parametrize("bits", [32, 20, 7])
def test_a_sum_without_dropouts_is_exact(bits):
    identities, terms, approval = cohort(bits=bits)
    shares = shares_of(terms)
    shares = {m: words & np.uint32(2**bits - 1) for m, words in shares.items()}
    assert Cohort(identities, terms, approval, shares).run().tolist() == exact(terms, shares, shares)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("member", [1, 3, 5])
def test_a_member_may_die_before_any_step(step, member):
    identities, terms, approval = cohort()
    shares = shares_of(terms)
    run = Cohort(identities, terms, approval, shares, {member: step})
    found = run.run()
    expected = [m for m in shares if m != member or step in ("agree", "reveal")]
    assert run.server.survivors == expected
    assert found.tolist() == exact(terms, shares, expected)


def test_members_may_die_at_different_steps():
    identities, terms, approval = cohort(members=9, colluding=1, dropouts=3)
    shares = shares_of(terms)
    for steps in itertools.product(STEPS, repeat=2):
        run = Cohort(identities, terms, approval, shares, {2: steps[0], 7: steps[1], 9: "masked"})
        assert run.run().tolist() == exact(terms, shares, run.server.survivors)


@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_the_sum_stays_closed(step):
    identities, terms, approval = cohort()
    run = Cohort(identities, terms, approval, shares_of(terms), {1: step, 4: step})
    with pytest.raises(ProtocolError, match="stays closed"):
        run.run()


def test_a_member_keeps_only_the_secrets_that_its_next_step_needs():
    """A process ends after every message, so what it saves is what a thief of the disk finds."""
    identities, terms, approval = cohort()
    run = Cohort(identities, terms, approval, shares_of(terms))
    secrets = {
        m: [secret.hex() for secret in (one._mask_key.private_bytes_raw(), one._seal_key.private_bytes_raw(), one._seed)]
        for m, one in run.members.items()
    }
    found, pieces = [], []
    for step in (run.advertise, run.share_pieces, run.send_masked, run.agree, run.reveal):
        step()
        for m, one in run.members.items():
            saved = one.save()
            run.members[m] = Member.restore(identities[m - 1], approval, terms, saved)
        found.append(sum(secret.encode() in saved for secret in secrets[m]))
        pieces.append(b"pieces" in saved)
    assert run.server.open().tolist() == exact(terms, run.shares, run.shares)
    assert found == [3, 3, 0, 0, 0]
    assert pieces == [False, True, True, True, False]


def test_a_member_whose_step_failed_keeps_no_secret():
    identities, terms, approval = cohort()
    run = Cohort(identities, terms, approval, shares_of(terms))
    run.advertise()
    run.share_pieces()
    one = run.members[1]
    secrets = [one._mask_key.private_bytes_raw().hex(), one._seed.hex(), one._pieces[1].hex()]
    with pytest.raises(ProtocolError):
        one.masked(b"no message", lambda: run.shares[1])
    assert not any(secret.encode() in one.save() for secret in secrets)


def test_a_masked_share_is_not_the_share_and_never_the_same_twice():
    identities, terms, approval = cohort(words=4000)
    shares = {m: np.zeros(4000, np.uint32) for m in range(1, 6)}
    seen = []
    for _ in range(2):
        run = Cohort(identities, terms, approval, shares)
        run.run()
        seen.append(run.server._words[1])
    assert (seen[0] == 0).sum() < 5
    assert (seen[0] == seen[1]).sum() < 5
    # Words look uniform: the mean of 4000 is within five standard deviations.
    assert abs(seen[0].mean() / 2**32 - 0.5) < 5 / np.sqrt(12 * 4000)


def test_reused_seeds_would_be_seen_in_a_difference():
    """The control: with one seed for two shares, their difference is that of the shares. Fresh keys prevent it."""
    one, two = np.arange(10, dtype=np.uint32), np.full(10, 7, np.uint32)
    stream = mask(b"s" * 32, b"c" * 32, 10)
    assert ((one + stream) - (two + stream) == one - two).all()
    assert (mask(b"s" * 32, b"d" * 32, 10) != stream).any()  # another job or round has another stream


def ready(step, **how):
    """A cohort that has gone through all steps before this one."""
    identities, terms, approval = cohort(**how)
    run = Cohort(identities, terms, approval, shares_of(terms))
    for name in ("advertise", "share_pieces", "send_masked", "agree")[: STEPS.index(step)]:
        getattr(run, name)()
    return run


def test_a_server_that_drops_a_member_cannot_also_ask_for_its_seed():
    """Step 5 derives both lists from one that is signed: a victim's piece of the seed or of the key, never both."""
    run = ready("reveal")
    signed = run.server.agreements()
    first = run.members[2].reveal(signed)
    assert len(unpack("reveal", first)) == 5  # one piece per member
    with pytest.raises(ProtocolError, match="Step 5"):
        run.members[2].reveal(signed)
    # The server now pretends that member 1 dropped out, and asks another member on that ground.
    sharers, without = [1, 2, 3, 4, 5], [2, 3, 4, 5]
    with pytest.raises(ProtocolError, match="Step 4"):
        run.members[3].agree(pack("survivors", [pack_numbers(sharers), pack_numbers(without)]))


def test_members_that_gave_both_secrets_would_show_the_share_of_one():
    """The control of the test above: with both secrets a server reads the very words of the member that it dropped."""
    identities, terms, approval = cohort()
    shares = shares_of(terms)
    run = Cohort(identities, terms, approval, shares)
    for step in (run.advertise, run.share_pieces, run.send_masked):
        step()
    texts = {m: member._pieces[2] for m, member in run.members.items() if m != 2}
    key, seed = combine([{m: t[:PIECE_BYTES] for m, t in texts.items()}, {m: t[PIECE_BYTES:] for m, t in texts.items()}])
    run.server.survivors = [1, 3, 4, 5]
    words = run.server._words[2] - mask(seed, terms.context(), terms.words) + run.server._left_over(2, key)
    assert words.tolist() == shares[2].tolist()


def test_two_lists_of_survivors_never_both_find_enough_signatures():
    run = ready("agree")
    sharers = [1, 2, 3, 4, 5]
    lists = {1: [1, 2, 3, 4, 5], 2: [1, 2, 3, 4, 5], 3: [2, 3, 4, 5], 4: [2, 3, 4, 5], 5: [2, 3, 4, 5]}
    signed = {}
    for member, survivors in lists.items():
        message = pack("survivors", [pack_numbers(sharers), pack_numbers(survivors)])
        signed[member] = unpack("agreement", run.members[member].agree(message), 1)[0]
    for signers in ([1, 2], [3, 4, 5]):
        message = pack("agreements", [pack_numbers(signers), *(signed[m] for m in signers)])
        with pytest.raises(ProtocolError, match="4 are needed"):
            run.members[signers[0]].reveal(message)
    message = pack("agreements", [pack_numbers([2, 3, 4, 5]), *(signed[m] for m in (2, 3, 4, 5))])
    with pytest.raises(ProtocolError, match="does not hold"):
        run.members[4].reveal(message)


def test_survivors_must_be_enough_hold_pieces_and_include_the_member():
    cases = [
        ([1, 2, 3, 4, 5], [1, 2, 3], "fewer than 4"),
        ([1, 2, 3, 4, 5], [2, 3, 4, 5], "The sum lacks this member"),
        ([1, 2, 3, 4], [1, 2, 3, 4], "other members"),
    ]
    for sharers, survivors, reason in cases:
        run = ready("agree")
        with pytest.raises(ProtocolError, match=reason):
            run.members[1].agree(pack("survivors", [pack_numbers(sharers), pack_numbers(survivors)]))


def test_two_rosters_or_two_sets_of_keys_end_in_a_refusal():
    identities, terms, approval = cohort()
    run = Cohort(identities, terms, approval, shares_of(terms))
    run.advertise()
    honest = run.server.all_keys()
    numbers, *fields = unpack("all-keys", honest)
    other = Member(identities[4], approval, terms)  # the server lets member 5 begin twice, and deals two sets of keys
    forged = pack("all-keys", [numbers, *fields[:4], other.advertise()])
    statements = set()
    for m in (1, 2, 3, 4):
        run.members[m].pieces(honest if m < 3 else forged)
        statements.add(agreement_statement(terms.context(), run.members[m]._all_keys, [1, 2, 3, 4], [1, 2, 3, 4]))
    assert len(statements) == 2  # signatures of the two halves never count together


def test_keys_must_be_signed_for_these_very_terms():
    identities, terms, approval = cohort()
    for change in ({"round": 4}, {"job": "other"}, {"sigma": 0.25}, {"settings": "x"}, {"scale": 2**9}, {"bits": 31}):
        elsewhere = dataclasses.replace(terms, **change)
        run = Cohort(identities, terms, approval, shares_of(terms))
        run.advertise()
        numbers, *fields = unpack("all-keys", run.server.all_keys())
        replayed = Member(identities[1], approval, elsewhere).advertise()
        with pytest.raises(ProtocolError, match="does not hold"):
            run.members[1].pieces(pack("all-keys", [numbers, fields[0], replayed, *fields[2:]]))
        with pytest.raises(ProtocolError, match="does not hold"):
            SumServer(terms).take_keys(2, replayed)


def test_members_that_were_shown_different_rosters_share_no_sum():
    """A policy may approve more members than a sum has: a server that shows each member another roster gets no further."""
    identities, terms, approval = cohort(members=6, colluding=0, dropouts=1)
    approval = dataclasses.replace(approval, size=5)
    rosters = [dataclasses.replace(terms, roster=terms.roster[a:b], least=4) for a, b in ((0, 5), (1, 6))]
    one, other = (Member(identities[n], approval, roster) for n, roster in zip((1, 2), rosters, strict=True))
    numbers = pack_numbers([1, 2, 3, 4])
    others = [Member(identities[n], approval, rosters[0]).advertise() for n in (0, 3)]
    with pytest.raises(ProtocolError, match="does not hold"):
        one.pieces(pack("all-keys", [numbers, others[0], one.advertise(), other.advertise(), others[1]]))


@pytest.mark.parametrize("step", STEPS[1:])
def test_messages_of_an_earlier_round_are_worth_nothing_in_the_next(step):
    """The same members, one round later: what the server holds from before opens nothing, and nothing is signed for it."""
    identities, terms, approval = cohort()
    old = Cohort(identities, terms, approval, shares_of(terms))
    old.run()
    run = Cohort(identities, dataclasses.replace(terms, round=terms.round + 1), approval, shares_of(terms))
    for name in ("advertise", "share_pieces", "send_masked", "agree")[: STEPS.index(step)]:
        getattr(run, name)()
    if step == "agree":  # this list says who is in the sum, and nothing else: the signature under it is of this round
        message = unpack("agreement", run.members[1].agree(old.server.survivors_list()), 1)[0]
        with pytest.raises(ProtocolError, match="does not hold"):
            old.server.take_agreement(1, pack("agreement", [message]))
        return
    with pytest.raises(ProtocolError, match=r"does not hold|another sum"):
        CALLS[step](run, MESSAGES[step](old))


def test_pieces_of_another_sum_are_not_accepted():
    one = ready("masked", words=3)
    other = ready("masked", words=3)
    other.terms = one.terms
    numbers, *sealed = unpack("own-pieces", one.server.pieces_for(1))
    foreign = unpack("own-pieces", other.server.pieces_for(1))[1:]
    with pytest.raises(ProtocolError, match="another sum"):
        one.members[1].masked(pack("own-pieces", [numbers, foreign[0], *sealed[1:]]), lambda: one.shares[1])


def test_no_share_leaves_before_all_is_checked():
    run, asked = ready("masked"), []
    message = pack("own-pieces", [pack_numbers([2, 3]), b"a", b"b"])
    with pytest.raises(ProtocolError, match="at least 3"):
        run.members[1].masked(message, lambda: asked.append(1) or run.shares[1])
    with pytest.raises(ProtocolError, match="Step 3"):  # and there is no second try
        run.members[1].masked(run.server.pieces_for(1), lambda: asked.append(1) or run.shares[1])
    assert asked == []


def test_a_key_that_nobody_can_agree_with_costs_nobody_a_release():
    """A member of the server's sends a point of small order as its mask key: the others stop before they make their shares."""
    identities, terms, approval = cohort()
    run, asked = Cohort(identities, terms, approval, shares_of(terms)), []
    run.advertise()
    keys = unpack("keys", run.server._signed[5], 2)[0][:KEY_BYTES] + bytes(KEY_BYTES)
    forged = pack("keys", [keys, identities[4].sign(keys_statement(terms.context(), keys))])
    with pytest.raises(ProtocolError, match="not valid for key agreement"):
        SumServer(terms).take_keys(5, forged)  # an honest server drops that member
    run.server._signed[5] = forged
    run.share_pieces()
    with pytest.raises(ProtocolError, match="not valid for key agreement"):
        run.members[1].masked(run.server.pieces_for(1), lambda: asked.append(1) or run.shares[1])
    assert asked == []


def test_a_wrong_piece_closes_the_sum_instead_of_spoiling_it():
    run = ready("reveal")
    signed = run.server.agreements()
    for m in run.members:
        message = run.members[m].reveal(signed)
        if m == 2:
            fields = unpack("reveal", message)
            message = pack("reveal", [bytes([0, fields[0][1] ^ 1]) + fields[0][2:], *fields[1:]])
        run.server.take_reveal(m, message)
    with pytest.raises(ProtocolError, match="do not fit"):
        run.server.open()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"keys": frozenset()}, "not approved"),
        ({"size": 6}, "fewer than the 6"),
        ({"colluding": 2}, "the policy asks for 2"),
        ({"dropouts": 0}, "the policy allows 0"),
    ],
)
def test_a_policy_decides_about_the_roster(change, reason):
    identities, terms, approval = cohort()
    with pytest.raises(ProtocolError, match=reason):
        Member(identities[0], dataclasses.replace(approval, **change), terms)


def test_an_invented_member_or_a_stranger_is_refused():
    identities, terms, approval = cohort()
    strangers, theirs, _ = cohort()
    with pytest.raises(ProtocolError, match="not on the roster"):
        Member(strangers[0], Approval(frozenset(terms.roster), 5, 1, 1), terms)
    mixed = dataclasses.replace(terms, roster=tuple(sorted([*terms.roster[:4], theirs.roster[0]])))
    with pytest.raises(ProtocolError, match="not approved"):
        Member(identities[0], approval, mixed)


@pytest.mark.parametrize(
    "change",
    [{"bits": 33}, {"scale": 1000}, {"words": 0}, {"least": 2}, {"least": 9}, {"sigma": 0.0}, {"round": -1}, {"colluding": 5}],
)
def test_terms_out_of_range_are_refused(change):
    _, terms, _ = cohort()
    with pytest.raises(ProtocolError):
        Terms.decode(dataclasses.replace(terms, **change).encode())


def test_doubled_members_are_refused():
    _, terms, _ = cohort()
    with pytest.raises(ProtocolError, match="different"):
        dataclasses.replace(terms, roster=(terms.roster[0],) * 5).check()
    with pytest.raises(ProtocolError, match="different"):
        unpack_numbers(pack_numbers([1, 1, 2]), 5)


CALLS = {
    "pieces": lambda run, message: run.members[1].pieces(message),
    "masked": lambda run, message: run.members[1].masked(message, lambda: run.shares[1]),
    "agree": lambda run, message: run.members[1].agree(message),
    "reveal": lambda run, message: run.members[1].reveal(message),
}
MESSAGES = {
    "pieces": lambda run: run.server.all_keys(),
    "masked": lambda run: run.server.pieces_for(1),
    "agree": lambda run: run.server.survivors_list(),
    "reveal": lambda run: run.server.agreements(),
}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), step=st.sampled_from(list(CALLS)))
def test_changed_messages_are_refused_and_nothing_else_happens(data, step):
    """Neighbours of a valid message: bytes changed, cut, or added. A ProtocolError, never another, and no answer."""
    run = ready(step, members=3, colluding=0, dropouts=0, words=2)
    message = bytearray(MESSAGES[step](run))
    place = data.draw(st.integers(0, len(message) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "add"]))
    if how == "flip":
        message[place] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del message[place:]
    else:
        message.insert(place, data.draw(st.integers(0, 255)))
        if bytes(message) == MESSAGES[step](run):
            return
    with pytest.raises(ProtocolError):
        CALLS[step](run, bytes(message))


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), noise=st.binary(max_size=60))
def test_noise_is_no_message(kind, noise):
    for message in (noise, pack(kind, [noise])[:-1], b"fpS1" + noise):
        with contextlib.suppress(ProtocolError):
            unpack(kind, message)
    with pytest.raises(ProtocolError):
        Terms.decode(pack("invitation", [noise]))
