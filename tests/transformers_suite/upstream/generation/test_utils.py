"""Stand-in: transformers' generation tests are not in its source distribution."""


class GenerationTesterMixin:
    """No tests of its own; `ModelTesterMixin` asks whether a test class of a generating model inherits from it."""
