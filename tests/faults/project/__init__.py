"""A small project whose jobs write down what becomes of them, for replicas that tests start, stop and kill."""
