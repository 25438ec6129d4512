"""A project whose jobs are tasks, for tests of replicas and workers as processes."""
