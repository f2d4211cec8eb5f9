"""Stand-in: transformers' export tests are not in its source distribution."""


class ExportTesterMixin:
    """No tests of its own; `ModelTesterMixin` inherits from it."""
