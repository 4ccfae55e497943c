"""`python -m messagenet` is the `messagenet` command."""

from messagenet.cli import main

main()
