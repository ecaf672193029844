"""The steps that bring a database from one version to the next, one module each in ``versions``."""
