"""`python -m lowtide`, for where the command is not on the path."""

from lowtide.cli import main

if __name__ == "__main__":
    main()
