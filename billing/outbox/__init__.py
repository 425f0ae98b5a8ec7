"""Telling others: messages are written with the change they tell of, and dispatched after it."""
