"""Tests of the pool that planned steps share, and of what lies outside of it."""
