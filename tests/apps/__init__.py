"""Small apps for the tests of autodiscovery and of default keys."""
