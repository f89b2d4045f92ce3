"""From settings to problem, algorithm, links and mechanism."""
