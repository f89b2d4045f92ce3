"""A cohort in one process, whose members can die at any step."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpdm.secure_sums.keys import public_text
from fedpdm.secure_sums.member import Member
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.terms import Approval, Terms

STEPS = ("advertise", "pieces", "masked", "agree", "reveal")


def cohort(members=5, colluding=1, dropouts=1, words=20, bits=32, **more):
    """Identities in the order of the roster, the terms, and an approval that fits them."""
    identities = sorted((Ed25519PrivateKey.generate() for _ in range(members)), key=public_text)
    roster = tuple(public_text(identity) for identity in identities)
    values = {"job": "job", "round": 3, "settings": "digest", "sigma": 0.5, "scale": 2**10} | more
    terms = Terms(roster=roster, bits=bits, least=members - dropouts, colluding=colluding, words=words, **values)
    return identities, terms, Approval(frozenset(roster), members, colluding, dropouts)


def shares_of(terms, seed=0):
    rng = np.random.default_rng(seed)
    return {m: rng.integers(0, 2**terms.bits, terms.words).astype(np.uint32) for m in range(1, len(terms.roster) + 1)}


def exact(terms, shares, members):
    """The sum in whole numbers of any size."""
    total = sum(shares[m].astype(object) for m in members)
    return [int(v) % 2**terms.bits for v in total]


class Cohort:
    """Runs a sum step by step; `dies` maps a member to the step before which it stops."""

    def __init__(self, identities, terms, approval, shares, dies=None):
        self.terms, self.shares, self.dies = terms, shares, dies or {}
        self.server = SumServer(Terms.decode(terms.encode()))
        self.members = {i + 1: Member(identity, approval, terms) for i, identity in enumerate(identities)}

    def alive(self, step):
        place = STEPS.index(step)
        return [m for m in self.members if STEPS.index(self.dies.get(m, "reveal")) > place or m not in self.dies]

    def advertise(self):
        for m in self.alive("advertise"):
            self.server.take_keys(m, self.members[m].advertise())

    def share_pieces(self):
        everybody = self.server.all_keys()
        for m in self.alive("pieces"):
            self.server.take_pieces(m, self.members[m].pieces(everybody))

    def send_masked(self):
        for m in self.alive("masked"):
            message = self.members[m].masked(self.server.pieces_for(m), lambda m=m: self.shares[m])
            self.server.take_masked(m, message)

    def agree(self):
        settled = self.server.survivors_list()
        for m in self.alive("agree"):
            self.server.take_agreement(m, self.members[m].agree(settled))

    def reveal(self):
        signed = self.server.agreements()
        for m in self.alive("reveal"):
            if m in self.server._agreements:
                self.server.take_reveal(m, self.members[m].reveal(signed))

    def run(self):
        for step in (self.advertise, self.share_pieces, self.send_masked, self.agree, self.reveal):
            step()
        return self.server.open()
