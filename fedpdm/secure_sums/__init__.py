"""The protocol of a secure sum, without any transport: see docs/secure-sums.md, section 6.

terms      what a sum is about; every signature and key is bound to it
shamir     a secret in pieces, of which a number suffices
keys       agreements, seals and masks from primitives of `cryptography`
messages   bytes on the wire, checked
member     one member's side of one sum
server     the server's side of one sum
"""
