"""`python -m zeropoint`."""

from .cli import main

main()
