from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from tqdm import tqdm

from webhooks.archive.files import data_files
from webhooks.archive.verifying import problems


class Command(BaseCommand):
    help = "Read every file of the archive and compare it with its manifest and the database."

    def handle(self, *args: Any, **options: Any) -> None:
        total = len(data_files())
        found = 0
        with tqdm(total=total, unit="file", file=sys.stderr, disable=not total) as bar:
            for problem in problems(on_file=bar.update):
                found += 1
                self.stdout.write(problem)
        self.stdout.write(f"{total} file(s) read, {found} problem(s)")
        if found:
            raise CommandError(f"{found} problem(s), named above")
