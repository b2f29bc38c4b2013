"""The leader: one loop that looks at the world, puts it through the core, and commits what follows."""
