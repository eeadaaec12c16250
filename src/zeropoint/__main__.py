"""`python -m zeropoint`."""

from .cli import main

if __name__ == "__main__":
    main()
