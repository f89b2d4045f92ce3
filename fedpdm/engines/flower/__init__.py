"""The same algorithm on Flower: `client_round` and `server_round` across machines that fail.

    protocol     the messages between the two sides, as Flower's records, and all refusals that a server sees
    job          the agreement before training, in one file with one digest; init makes it
    client/      one client's answer to one request: app is the ClientApp, client the path of a request, held_jobs and policy
                 the client's consent, admission the limits of a day, rows and node_data its own rows, work the computation,
                 store and books its records on disk
    server/      the server's rounds: app is the ServerApp, strategy asks nodes, coordinator and evaluations use the replies
    processes/   programs, keys and folders around a deployment

The tests of privacy and of faults call the parts that do not depend on Flower.
"""
