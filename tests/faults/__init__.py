import pytest

# Their assertions are the tests' own: a failure shall show both sides.
pytest.register_assert_rewrite("tests.faults.truths", "tests.faults.servers")
