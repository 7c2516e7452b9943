"""Puts this folder on the path, so that the chapters' tests can share `core_helpers`."""
