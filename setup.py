# SPDX-License-Identifier: Apache-2.0
"""The description of the package: README.md without its picture, which an index page cannot find in the repository."""

import re
from pathlib import Path

from setuptools import setup

_PICTURE = re.compile(r"^!\[.*\]\((?!https?:).*\)\n\n", re.MULTILINE)

setup(long_description=_PICTURE.sub("", Path(__file__).with_name("README.md").read_text(encoding="utf-8")))
