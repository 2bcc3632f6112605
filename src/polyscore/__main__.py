"""`python -m polyscore`: the command line where nothing is installed."""

from polyscore.cli import app

app()
