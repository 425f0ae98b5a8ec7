"""Imported once by the process from which children are forked, so that each has Django at once."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()
