"""Jobs that are tasks, with real queues and workers."""
