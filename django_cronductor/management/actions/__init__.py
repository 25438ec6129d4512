"""The actions of the `cron` command: each has a function that declares its options, and one that does it."""
