"""The demo: one noisy tenant beside nineteen quiet ones, with crashes on the way."""
