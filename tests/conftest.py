"""Tiny checkpoints that several test files share; each is made once."""

import pytest


@pytest.fixture(scope="session")
def janus(tmp_path_factory):
    import tiny  # transformers takes seconds to import: only for the tests that need it

    return tiny.Saved.make(tiny.janus(), tmp_path_factory.mktemp("Janus-Pro-tiny"))


@pytest.fixture(scope="session")
def emu3(tmp_path_factory):
    import tiny

    return tiny.Saved.make(tiny.emu3(), tmp_path_factory.mktemp("Emu3-Gen-tiny"))


@pytest.fixture(scope="session")
def lumina(tmp_path_factory):
    import tiny

    return tiny.Saved.make(tiny.lumina(), tmp_path_factory.mktemp("Lumina-mGPT-tiny"), tiny.save_lumina)
