"""Training by secure sums: a member with one process per message, and the server's rounds."""
