# SPDX-License-Identifier: Apache-2.0
"""The steps that bring a database from one version to the next, one module each in ``versions``."""
