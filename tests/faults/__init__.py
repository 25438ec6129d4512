"""The promises shown with real processes, which are started, stopped and killed."""

import pytest

pytest.register_assert_rewrite("tests.faults.replicas")
