"""A project with a database that the environment names, for tests of commands as processes."""
