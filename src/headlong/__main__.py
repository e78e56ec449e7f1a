"""``python -m headlong``: the command line, where no script was installed or torchrun starts one in each process."""

from headlong.cli.main import app

app()
