"""The same algorithm on Flower: `client_round` and `server_round` across machines that fail.

    protocol     what the two sides say to each other, as Flower's records
    policy       what a client agrees to
    store        what a client keeps on disk
    node_data    a client's own examples
    client       one client's answer to one request; knows nothing of Flower
    client_app   the ClientApp
    server       the server's rounds and checkpoints; knows nothing of Flower (run_folder, replies: parts of it)
    strategy     asks nodes and collects replies
    server_app   the ServerApp

The parts that know nothing of Flower are what the tests of privacy and of faults call, too.
"""
