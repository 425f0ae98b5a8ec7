"""Always-true rules over the whole database. Each is a function that yields what breaks it, and its
docstring says what must hold."""
