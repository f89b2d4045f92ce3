"""The protocol of a secure sum, without any transport: see docs/secure-sums.md, section 6.

terms      the terms of a sum; every signature and key is bound to them
shamir     a secret in pieces, of which a fixed number is enough
keys       key agreement, sealed messages and masks from primitives of `cryptography`
messages   bytes on the wire, checked
member     one member's side of one sum
server     the server's side of one sum
"""
