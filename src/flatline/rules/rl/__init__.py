"""Reinforcement learning: rewards, the distance from a reference, critics and seeds."""
