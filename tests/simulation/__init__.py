import pytest

pytest.register_assert_rewrite("tests.simulation.laws", "tests.simulation.world")  # so that a broken law shows its values
