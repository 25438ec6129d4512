#!/usr/bin/env python
"""Run the tests with pytest; arguments are passed on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parent)
    try:
        import pytest
    except ImportError:
        sys.exit('The test tools are missing: python -m pip install -e ".[test]"')
    sys.exit(pytest.main(sys.argv[1:]))
