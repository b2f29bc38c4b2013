"""The agents: each makes one machine equal to its desired state and reports what it read back. Both are crash-only."""
