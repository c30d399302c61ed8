"""The pages of ``docs/reference``, made from the code: ``python -m reference`` writes them, a test compares them."""
