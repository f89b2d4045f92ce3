"""The same algorithm on Flower: `client_round` and `server_round` across machines that fail.

    protocol     what the two sides say to each other, as Flower's records, and all refusals that a server sees
    job          all that is agreed on before training, in one file with one digest; init makes it
    client/      one client's answer to one request: app is the ClientApp, client the way of a request, held_jobs and policy
                 what it agrees to, admission the limits of a day, rows and node_data its own rows, work the computation, store
                 and books what it keeps on disk
    server/      the server's rounds: app is the ServerApp, strategy asks nodes, coordinator and evaluations take what comes in
    processes/   programs, keys and folders around a deployment

The parts that know nothing of Flower are what the tests of privacy and of faults call, too.
"""
