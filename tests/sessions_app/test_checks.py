"""What is wrong with the settings is told at start."""

from sessions_app.checks import dotted_paths


def test_the_settings_as_they_come_are_sound():
    assert dotted_paths(None) == []


def test_a_runtime_that_cannot_be_imported_is_named(settings):
    settings.RUNTIMES = {"mine": "nowhere.to.be.Found"}
    (error,) = dotted_paths(None)
    assert (error.id, "RUNTIMES['mine']" in error.msg) == ("suzent.E001", True)
