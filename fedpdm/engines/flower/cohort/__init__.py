"""Training by secure sums: a member that lives through one process per message, and the server's rounds."""
